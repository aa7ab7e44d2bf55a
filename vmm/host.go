package vmm

import (
	"tms/internal/aid/descriptors"
	"tms/internal/machine/hostmemory"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// Host is the process that an engine lives in: all that the engine asks of it. The engine calls its methods on any
// thread, and holds no lock of its own unless a method says so. Solitary is a Host for the engine of a process that has
// nothing to say.
type Host interface {
	// Announce gets the address range of each new arena, with a lock held. Its error fails the allocation.
	Announce(base uintptr, size uint64) error

	// Contexts calls use for each context that the program itself has made on a device, one at a time, and keeps the
	// program from destroying that context until use returns. It stops at the first error of use. The primary context
	// is not among them.
	Contexts(ordinal int, use func(cuda.Context) error) error

	// WithoutCaptures calls a short function while no stream is being captured, and holds up threads that would begin
	// a capture. During a capture it returns cuda.StreamCaptureUnsupported instead.
	WithoutCaptures(call func() error) error

	// Gated is called, with a lock held, when gated pauses (Options.Gated) keep something paused and did not before,
	// and the reverse: all of it was resumed or freed, or went with a reset.
	Gated(now bool)

	// Exposed is called, with a lock held, when memory becomes exposed and none was, and the reverse: a pause that is
	// not gated keeps it, so a call of the program may name addresses where nothing is mapped.
	Exposed(now bool)

	// Observe is called when a transition begins and when it ends, on the transition's thread.
	Observe(Transition)

	// Warn gets a line for the user's log, which is rare.
	Warn(line string)

	// Holders names the holders of a device's memory, by the device's UUID, to follow a line of the log; "" if they
	// are not known.
	Holders(uuid string) string

	// Ledger is where transitions promise the host memory that they are about to take, or nil.
	Ledger() *hostmemory.Ledger

	// Descriptors holds the descriptors of files with contents, and of contents for Options.Toward. It closes those of
	// Fetch.
	Descriptors() store.Descriptors

	// Reserved is host memory for contents, used as long as there is room, or nil.
	Reserved() store.Reserve

	Compactor
	Offers
	Processes
}

// Solitary is the Host of a process without a gate, contexts of its own, neighbours, or a log. A Host can embed it and
// say more. Its zero value is ready.
type Solitary struct{ held descriptors.Holder }

// Announce takes every range.
func (*Solitary) Announce(uintptr, uint64) error { return nil }

// Contexts finds none.
func (*Solitary) Contexts(int, func(cuda.Context) error) error { return nil }

// WithoutCaptures makes the call.
func (*Solitary) WithoutCaptures(call func() error) error { return call() }

// Gated does nothing.
func (*Solitary) Gated(bool) {}

// Exposed does nothing.
func (*Solitary) Exposed(bool) {}

// Observe does nothing.
func (*Solitary) Observe(Transition) {}

// Warn drops the line.
func (*Solitary) Warn(string) {}

// Holders knows of none.
func (*Solitary) Holders(string) string { return "" }

// Ledger has none.
func (*Solitary) Ledger() *hostmemory.Ledger { return nil }

// Descriptors keeps them in the process's own table.
func (s *Solitary) Descriptors() store.Descriptors { return &s.held }

// Reserved has none.
func (*Solitary) Reserved() store.Reserve { return nil }

// CanCompact is false: nothing stops the program.
func (*Solitary) CanCompact() bool { return false }

// Compact does nothing.
func (*Solitary) Compact(int) error { return nil }

// TakeOffer finds every allocation live: none is offered.
func (*Solitary) TakeOffer(int, bool) Taken { return TakenLive }

// Fetch finds no process.
func (*Solitary) Fetch(Share, uint64) (Export, error) { return Export{}, ErrShareGone }

// Return tells no process.
func (*Solitary) Return(Share, uint64) error { return nil }

// Gone is true: there is no other process.
func (*Solitary) Gone(Importer) bool { return true }

// Settings are an engine's for good.
type Settings struct {
	// Shareable: make memory that can be exported to other processes, where devices can do that: by Share, or by the
	// program itself (cuMemRetainAllocationHandle, cuMemExportToShareableHandle). A process that got memory from the
	// program keeps it over a pause, so that memory is not free until the process releases it; the segment gets new
	// memory at the resume. Such memory is the segment's alone only if its extent is: see Options.ExtentBytes.
	Shareable bool
	// Invariants: check them after each call, which is slow, and warn of the first that does not hold.
	Invariants bool
}
