// Package trace reads two formats of traces of allocations for replays. preload/watch/recording.c writes records
// (records.go), which have pauses and resumes too. The other is the CSV format of RMM's logging_resource_adaptor, which
// RMM's replay benchmark and its viewers read: a header, then a line for each block that was made, freed or refused.
// Thread is the kernel's number, Time the local time to the microsecond, Pointer and Stream are in hexadecimal, Size is
// the requested size.
//
// Lines are in an order that the calls can have had: a block is freed before it is made again, whatever threads do. A
// call without effect has no line: size 0, address 0, an address that was refused.
package trace

// Header is the first line of a trace.
const Header = "Thread,Time,Action,Pointer,Size,Stream"

// Action is what an event does.
type Action uint8

const (
	Allocate Action = iota
	Free
	Failure // an allocate that was refused
)

// Event is one line of a trace, as far as a replay needs it.
type Event struct {
	Action Action
	Block  uint32 // the number of an allocate, from 1 on, which its free has too; 0 for a null pointer
	Size   uint64 // bytes asked for; for a free, those of its allocate
	Stream uint64
}

// Trace is the events of a file in their order. Every free ends a block that is live then.
type Trace struct {
	Name   string // the file's path
	Events []Event
	Blocks int // the highest number of a block
}
