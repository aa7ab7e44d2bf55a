package store

import (
	"time"

	"tms/vmm/cuda"
)

// ErrHostMemory says that a backup needs host memory that the operating system did not give, or the driver did not pin.
// Nothing was saved; free host memory and call again.
var ErrHostMemory = cuda.Refuse(cuda.OperatingSystem, "not enough host memory for the backup")

// Span is a range of device memory, in bytes.
type Span struct {
	Address uintptr
	Size    uint64
}

// Range is a part of a span, in bytes from its start.
type Range struct {
	Offset, Size uint64
}

// Item is a span to save.
type Item struct {
	Span
	// Saved, unless nil, is the Contents that an earlier Save of the same span returned: it is
	// overwritten and returned again.
	Saved Contents
	// Sparse, for host memory alone: only Parts are saved, and nothing else of the span comes back. Saved is sparse too,
	// and has room for what the item Needs. Room, unless 0, is how many bytes to take if the parts have fewer.
	Sparse bool
	Room   uint64
	// Parts are what of the span is to be copied: all of it, or what has changed since Saved was made.
	Parts []Range
	// Target is the ordinal of the device on which a Peer is to keep the contents, -1 for any device, or peer.Reserved.
	Target int
}

// Needs returns how many bytes of host memory the item takes that has nothing Saved.
func (i Item) Needs() uint64 {
	if i.Sparse {
		return max(i.Room, Ranges(i.Parts).Bytes())
	}
	return i.Size
}

// Job is the device that a Save or Load works for: idle, and no other job runs on it.
type Job struct {
	Device  int // ordinal
	Context cuda.Context
	Node    int     // NUMA node of the host memory nearest to it, or -1
	Budget  *Budget // of host memory
	// Portable, for a Peer's Save: the memory stays where it is when the driver checkpoints the process. The caller has
	// made sure that enough stays free there.
	Portable bool
	// Copied, unless nil, is called with how many more bytes have been copied, on any thread and at any time of the
	// job.
	Copied func(bytes uint64)
}

// Report calls Copied with bytes that have been copied.
func (j Job) Report(bytes uint64) {
	if j.Copied != nil {
		j.Copied(bytes)
	}
}

// Contents is what a Store keeps of one span.
type Contents interface {
	// Store returns where it is saved.
	Store() Store
	// Bytes returns how much memory it takes, of the host, the disk or a peer.
	Bytes() uint64
	// Host returns the address of a host copy of the whole span, 0 if there is none, or one of parts.
	Host() uintptr
	// Discard gives the memory back, in the background: it never waits. Afterwards nothing but Await may be called.
	Discard()
	// Await waits until the discarded memory has been given back, but not beyond until; the zero Time sets no limit. It
	// does not wait for memory that others share, nor for memory that the driver or the system refuses to take.
	Await(until time.Time)
}

// Store keeps contents somewhere.
type Store interface {
	// Save copies every item into a Contents of its own, which may be of another store where this
	// one falls back to it. After an error nothing is saved; what was in Saved is undefined, and another Save can
	// overwrite it.
	Save(job Job, items []Item) ([]Contents, error)
	// Load begins copying contents of this store back.
	Load(job Job) Loader
}

// Held is a Store whose contents are behind descriptors, so that the host cannot read them where they are.
type Held interface {
	Store
	// Give copies contents into the host memory of targets; each has the right size, and an address.
	Give(job Job, contents, targets []Contents) error
}

// Loader restores spans while others are still being mapped.
type Loader interface {
	// Add starts restoring a span whose device memory is mapped; it may return before it is done.
	Add(span Span, contents Contents)
	// Wait ends the load and returns the first error. Contents stay valid.
	Wait() error
}
