package main

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/server"
	"tms/internal/hostmemory"
	"tms/vmm/cuda"
)

// extents is a peer.Extents: the keeper has them. It is not started for that, and a pause hardly waits for one that is
// stopped.
type extents struct{}

// silent is when the keeper last did not answer.
var silent atomic.Pointer[time.Time]

func (extents) ask(r control.Request, given int) (reply control.Reply, came int, err error) {
	if last := silent.Load(); last != nil && time.Since(*last) < time.Second {
		return reply, -1, cuda.Refuse(cuda.Timeout, "the keeper does not answer")
	}
	reply, came, err = server.AskWithin(100*time.Millisecond, thisProcess{}.Directories, control.Keeper, r, given)
	if now := time.Now(); cuda.Code(err) == int(cuda.Timeout) {
		silent.Store(&now)
	}
	if err == nil && (!reply.OK || r.Bytes > 0 && came < 0) {
		err = cuda.Refuse(cuda.OutOfMemory, "the keeper gives none: %s", reply.Error)
	}
	return reply, came, err
}

// Free: the process listens from then on, because its socket's thread keeps the descriptors.
func (x extents) Free(node int) uint64 {
	reply, _, err := x.ask(control.Request{Op: control.Take}, -1)
	if err != nil || reply.Reserved[node] == 0 || socket.Serve() != nil {
		return 0
	}
	return reply.Reserved[node]
}

func (x extents) Take(node int) (descriptor int, err error) {
	_, descriptor, err = x.ask(control.Request{Op: control.Take, Node: &node, Bytes: cuda.HostExtent}, -1)
	return descriptor, err
}

// Give: without the keeper, the extent goes back to the system.
func (x extents) Give(node, descriptor int) {
	_, _, _ = x.ask(control.Request{Op: control.Give, Node: &node}, descriptor)
}

// ledger is where this process promises the host memory that it is about to take.
var ledger = &hostmemory.Ledger{Directory: func() (string, error) {
	runtime, temporary := thisProcess{}.Directories()
	return control.CommonDirectory(runtime, temporary, unix.Geteuid())
}}
