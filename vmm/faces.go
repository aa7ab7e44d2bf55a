package vmm

// An engine allocates, frees, pauses and resumes. Four faces over the same records have the rest.

// UserMapped is the program's own virtual memory: what cuMemCreate made in a region, and its mappings.
type UserMapped struct{ engine *Engine }

// UserMapped returns what the engine knows of memory that the program maps itself.
func (e *Engine) UserMapped() UserMapped { return UserMapped{e} }

// Shared is memory that several processes have, of a process or of a set.
type Shared struct{ engine *Engine }

// Shared returns what the engine knows of memory that several processes have.
func (e *Engine) Shared() Shared { return Shared{e} }

// Ordered is memory that is allocated and freed in the order of a stream.
type Ordered struct{ engine *Engine }

// Ordered returns what the engine knows of memory in the order of streams.
func (e *Engine) Ordered() Ordered { return Ordered{e} }

// Records are what the engine says of its memory. Nothing here changes anything.
type Records struct{ engine *Engine }

// Records returns what can be read of the engine.
func (e *Engine) Records() Records { return Records{e} }
