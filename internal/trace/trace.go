// Package trace reads traces of allocations in the CSV format of RMM's logging_resource_adaptor, so that
// they can be replayed.
package trace

// Header is the first line of a trace.
const Header = "Thread,Time,Action,Pointer,Size,Stream"

// Action is what an event does.
type Action uint8

// The actions.
const (
	Allocate Action = iota
	Free
	Failure // an allocate that the program was refused
)

var names = [...]string{Allocate: "allocate", Free: "free", Failure: "allocate failure"}

// String returns the action as traces spell it.
func (a Action) String() string { return names[a] }

// Event is one line of a trace, without what a replay has no use for.
type Event struct {
	Action Action
	Block  uint32 // numbers an allocate from 1 on, and names the one that a free ends; 0: none, of pointer 0
	Size   uint64 // bytes asked for; of a free, those of its allocate
	Stream uint64
}

// Trace is the events of a file in their order. Every free ends a block that is live then.
type Trace struct {
	Name   string // the file's path
	Events []Event
	Blocks int // the highest number of a block
}
