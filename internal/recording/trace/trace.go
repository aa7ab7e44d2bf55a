// Package trace has the formats of traces of allocations, and reads them so that they can be replayed. What
// preload/trace.c writes are records (records.go), which have pauses and resumes too. The other is the CSV
// format of RMM's logging_resource_adaptor, which RMM's replay benchmark and its viewers read: a header, then a
// line for each block that is made, freed or refused. Thread is the kernel's number, Time the local time to the
// microsecond, Pointer and Stream are in hexadecimal, Size is what was asked for.
//
// Lines are in an order in which the calls can have happened: a block is freed before it is made again, whatever
// threads do. Nothing is written where nothing happened: size 0, address 0, an address that was refused.
//
// Lines are written by tms report --format csv, and by tms.trace_from_memory_history.
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
