// Package vmm is the engine: it makes device memory whose physical part can be taken away and
// brought back under the same addresses.
//
// A segment is one cudaMalloc, or a slab: a granule that allocations below the granularity share. Its addresses
// are a span of an arena, a large reservation of its device that is kept for good. Its memory is an extent: one
// physical handle and one mapping, which neighbours may share after a resume. What is freed in an extent that
// others still use is slack. Segments with one tag are paused and resumed together, as a transaction: a
// transition. Where contents wait meanwhile is the business of a store of package backup.
//
// # Files
//
//	engine.go                    Engine: what it is made of
//	device.go, tag.go            what is known of a GPU; its segments by tag, and their slack
//	segment.go, extent.go        a segment, its contents and their policy; an extent, step by step
//	slabs.go                     which slabs have room
//	malloc.go, lookup.go         an allocation is made; what is at an address
//	free.go, pending.go          frees: now; those that wait for a capture, a stream or the driver
//	transition.go                what pause, resume and move have in common; whose turn it is
//	pause.go, resume.go          the two transactions
//	prepare.go, reset.go         pinning ahead; the end of a device
//	quiesce.go, access.go        waiting for a device; which devices have access
//	contexts.go                  contexts that the program made, and which of them can be waited for
//	usermapped.go, ..._calls.go, ..._range.go, ..._share.go
//	                             memory that the program maps itself with the driver's calls
//	share.go, import.go          memory that other processes have mapped; theirs that is mapped here
//	digests.go, poison.go        content hashes: verify, incremental; filling what is lost
//	move.go                      contents from host memory to disk, and back
//	discarded.go, lost.go        contents given up, and waiting for them; contents that are lost
//	progress.go, stats.go        how far a transition is; what there is
//	errors.go, unknown.go        what is refused; tags that never were
//	invariants.go                the records, checked against each other
//
// The packages below know nothing of this one: space (addresses), small (slabs), backup (contents: host, disk,
// peer), digest (hashes on the GPU), cuda (the driver), reclaim (what is still to be given back).
//
// # The life of a segment
//
//	             Malloc              Pause
//	           ---------->         --------->
//	(addresses)             active             paused
//	           <----------         <---------
//	    ^        Free        |  ^    Resume      |
//	    |     Free, where    |  |                |
//	    |    others use the  v  | Malloc         |
//	    |        extent     slack                |
//	    |                    |                   |
//	    +--------------------+-------------------+
//	     Pause, or the others go       Free
//
// Its extent goes through the steps none, created, mapped, accessible and back. Whoever is not working on it sees
// an active one at accessible, and a paused one at none, or after an error at created or mapped: the next pause,
// resume or free goes on from there. Who works on a segment or an extent owns it: a pause or resume (aTransition),
// a driver call (aCall), or a free, made or pending (aFree); with that owner it is not found any more.
//
// # Locks
//
// In the order in which they are taken: transition, of which pauses, resumes,
// preparations and resets have turns; mu, over all records, space and small included, never held over a driver call
// but those of newDevice and of the reservation of an arena; then mu of sharing, under which nothing is done, and
// those inside backup, cuda, digest and reclaim, which call nobody above. What works on extents without mu owns
// them, and their segments where it changes those: others wait for settled. None of these is held while anything
// of the program's is waited for: its streams and contexts (quiesce), its callbacks (track), other processes that
// have its memory mapped (awaitImporters), what pending frees wait for (reap, awaitDevices).
package vmm
