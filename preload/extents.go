package main

import (
	"os"
	"time"

	"tms/internal/control"
	"tms/internal/control/server"
	"tms/internal/machine/hostmemory"
	"tms/vmm/cuda"
)

// extents is a store.Reserve: the keeper has them. It is not started for that, and a pause hardly waits for one that is
// stopped.
type extents struct{ process *Process }

// answerTime is how long a pause waits for a keeper that is stopped, and silentTime for how long after a keeper did not
// answer it does not ask again.
const (
	answerTime = 100 * time.Millisecond
	silentTime = time.Second
)

func (e extents) isSilent() bool {
	last := e.process.keeperSilent.Load()
	return last != nil && time.Since(*last) < silentTime
}

// note notes whether the keeper has answered in time.
func (e extents) note(err error) {
	if now := time.Now(); cuda.Code(err) == int(cuda.Timeout) {
		e.process.keeperSilent.Store(&now)
	}
}

// Free: the process listens from then on, because its socket's thread holds the descriptors.
func (x extents) Free(node int) uint64 {
	if x.isSilent() {
		return 0
	}
	reply, _, err := server.AskWithin(answerTime, x.process.Directories, control.Keeper,
		control.SetRequest{Op: control.Take}, -1)
	x.note(err)
	if err != nil || reply.Reserved[node] == 0 || x.process.socket.Serve() != nil {
		return 0
	}
	return reply.Reserved[node]
}

// Take: the extent is this process's once the socket's thread has it. Else the keeper takes it back.
func (x extents) Take(node int) (number uint64, err error) {
	if x.isSilent() {
		return 0, cuda.Refuse(cuda.Timeout, "the keeper does not answer")
	}
	take := control.SetRequest{Op: control.Take, Node: &node, Bytes: cuda.HostExtent}
	err = server.TakeWithin(answerTime, x.process.Directories, take, func(descriptor int) (err error) {
		number, err = x.process.socket.Held().Keep(descriptor)
		return err
	})
	x.note(err)
	return number, err
}

// Give hands the extent to the keeper, however late that takes it.
func (e extents) Give(node int, number uint64) error {
	return e.process.socket.Held().Give(node, number)
}

// newLedger is where this process promises the host memory that it is about to take.
func newLedger(p *Process) *hostmemory.Ledger {
	return &hostmemory.Ledger{Directory: func() (string, error) {
		runtime, temporary := p.Directories()
		return control.CommonDirectory(runtime, temporary, os.Geteuid())
	}}
}
