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

// extents is a store.Reserve: the keeper has them. It is not started for that, and a pause hardly waits for one that is
// stopped.
type extents struct{}

// silent is when the keeper last did not answer.
var silent atomic.Pointer[time.Time]

// answerTime is how long a pause waits for a keeper that is stopped, and silentTime for how long after a keeper did not
// answer it does not ask again.
const (
	answerTime = 100 * time.Millisecond
	silentTime = time.Second
)

var errSilent = cuda.Refuse(cuda.Timeout, "the keeper does not answer")

func (extents) isSilent() bool {
	last := silent.Load()
	return last != nil && time.Since(*last) < silentTime
}

// note notes whether the keeper has answered in time.
func (extents) note(err error) {
	if now := time.Now(); cuda.Code(err) == int(cuda.Timeout) {
		silent.Store(&now)
	}
}

// Free: the process listens from then on, because its socket's thread keeps the descriptors.
func (x extents) Free(node int) uint64 {
	if x.isSilent() {
		return 0
	}
	reply, _, err := server.AskWithin(answerTime, thisProcess{}.Directories, control.Keeper,
		control.Request{Op: control.Take}, -1)
	x.note(err)
	if err != nil || reply.Reserved[node] == 0 || socket.Serve() != nil {
		return 0
	}
	return reply.Reserved[node]
}

// Take: the extent is this process's once the socket's thread has it. Else the keeper takes it back.
func (x extents) Take(node int) (number uint64, err error) {
	if x.isSilent() {
		return 0, errSilent
	}
	take := control.Request{Op: control.Take, Node: &node, Bytes: cuda.HostExtent}
	err = server.TakeWithin(answerTime, thisProcess{}.Directories, take, func(descriptor int) (err error) {
		number, err = descriptors{}.Keep(descriptor)
		return err
	})
	x.note(err)
	return number, err
}

// Give hands the extent to the keeper, however late that takes it. Without a keeper, it goes back to the system.
func (extents) Give(node int, number uint64) error {
	return server.AskSelf(thisProcess{}.Directories, control.Request{Op: control.Give, Share: number, Node: &node}, -1)
}

// ledger is where this process promises the host memory that it is about to take.
var ledger = &hostmemory.Ledger{Directory: func() (string, error) {
	runtime, temporary := thisProcess{}.Directories()
	return control.CommonDirectory(runtime, temporary, unix.Geteuid())
}}
