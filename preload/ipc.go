package main

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/server"
	"tms/internal/machine/process"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// Memory that processes share by CUDA's handles (ipc.c): what the handles hold, and how an importer asks the exporting
// process for the memory, over its control socket (internal/control/server). Descriptors stay open only while a call
// lasts.

// By default, a pause waits pauseWait for other processes to unmap this process's memory, and a resume waits resumeWait
// for their memory to be back. Ranks of a job that do the same do it at different times, which both cover. resumeWait
// also covers the copy of the contents.
const (
	pauseWait  = 10 * time.Second
	resumeWait = time.Minute
)

//export tmsShare
func tmsShare(address C.uintptr_t, handle *C.struct_ipc_handle) C.int {
	return report(self.enter(func(e *vmm.Engine) error {
		if base, _ := e.Records().RangeOf(uintptr(address)); self.pools.program != nil && base != uintptr(address) {
			return cuda.Refuse(cuda.NotSupported, "memory of a pool (TMS_INIT_POOL) is shared with other processes "+
				"only as the whole segment of the pool; allocate it outside regions")
		}
		id, offset, size, err := e.Shared().Name(uintptr(address))
		if err != nil {
			return err
		}
		start, _, err := process.Started(os.Getpid())
		handle.start, handle.id = C.uint64_t(start), C.uint64_t(id)
		handle.offset, handle.size = C.uint64_t(offset), C.uint64_t(size)
		return err
	}))
}

// shareStopped is the error while a pause from outside keeps the process that has the memory at the gate. The client
// that has made the pause ends it, so others can wait for the memory as the process's own threads do.
type shareStopped struct{}

func (shareStopped) Error() string {
	return vmm.ErrSharePaused.Error() + ", whose program is stopped; resume it there first"
}
func (shareStopped) Unwrap() error { return vmm.ErrSharePaused }

// importOperation opens a handle that ipc.c made, for a device.
type importOperation struct {
	handle C.struct_ipc_handle
	device int
}

func (o *importOperation) run(_ *Process, e *vmm.Engine) (uint64, error) {
	handle := &o.handle
	share := vmm.Share{PID: int(handle.pid), Start: uint64(handle.start), ID: uint64(handle.id)}
	if share.PID == os.Getpid() {
		return 0, cuda.Refuse(cuda.InvalidContext, "the handle names memory of this process itself: use the address "+
			"that it was made of")
	}
	if err := goruntime.Ready(o.device); err != nil {
		return 0, err
	}
	address, err := e.Shared().Import(o.device, share, uint64(handle.offset))
	if err != nil {
		err = fmt.Errorf("opening memory of process %d: %w", share.PID, err)
	}
	return uint64(address), err
}

// Gone reports whether an importer has ended.
func (p *Process) Gone(i vmm.Importer) bool { return process.Ended(i.PID, i.Start) }

// Return sends the notice without waiting for an answer: a stopped process reads it when it goes on.
func (p *Process) Return(share vmm.Share, number uint64) error {
	if share.PID == vmm.Keeper || process.Ended(share.PID, share.Start) {
		return nil
	}
	return server.Tell(p.Directories, share.PID,
		control.LendRequest{Op: control.Returned, Memory: share.ID, Import: number})
}

func (p *Process) Fetch(share vmm.Share, number uint64) (vmm.Export, error) {
	lend := control.LendRequest{ID: 1, Op: control.Lend, Memory: share.ID, Import: number}
	var reply control.Reply
	var err error
	descriptor := -1
	if share.PID == vmm.Keeper && p.sets.parts.isOpen(share.ID) { // the keeper may be stopped, or new and without this memory
		if server.Ended(p.Directories, control.Keeper) { // another is to have the set when this process ends
			_ = helped(func() C.int { return C.keeper_start() })
		}
		reply, descriptor, err = server.Ask(p.Directories, os.Getpid(), lend, -1)
	}
	if descriptor < 0 && !errors.Is(err, unix.EMFILE) {
		reply, descriptor, err = p.ask(share, lend, -1)
	}
	if err == nil && descriptor < 0 {
		err = errors.New("the memory did not come with the answer: no room for a descriptor?")
	}
	if err == nil && share.PID == vmm.Keeper {
		p.sets.parts.keepOpen(share.ID, reply.Bytes, descriptor)
	}
	return vmm.Export{Descriptor: descriptor, Extent: reply.Extent, Offset: reply.Offset, Size: reply.Bytes,
		Tag: stats.TagName(reply.Tag), Device: reply.Device}, err
}

// ask sends a request, with a descriptor unless that is -1, and returns the reply and the descriptor that came with it,
// or -1. If the keeper is asked and does not run, ask starts it. Errors: vmm.ErrShareGone, even if the process has
// ended or ends as it is asked, and vmm.ErrSharePaused.
func (p *Process) ask(share vmm.Share, r control.Request, given int) (reply control.Reply, descriptor int, err error) {
	if share.PID != vmm.Keeper && process.Ended(share.PID, share.Start) {
		return reply, -1, fmt.Errorf("the process has ended: %w", vmm.ErrShareGone)
	}
	reply, descriptor, err = server.Ask(p.Directories, share.PID, r, given)
	if share.PID == vmm.Keeper && err != nil && cuda.Code(err) != int(cuda.Timeout) && !errors.Is(err, unix.EMFILE) {
		if err = helped(func() C.int { return C.keeper_start() }); err != nil {
			return reply, -1, err
		}
		reply, descriptor, err = server.Ask(p.Directories, share.PID, r, given)
	}
	switch {
	case share.PID != vmm.Keeper && err != nil && process.Ending(share.PID, share.Start):
		err = fmt.Errorf("the process has ended: %w", vmm.ErrShareGone)
	case share.PID == vmm.Keeper && err != nil:
		err = fmt.Errorf("the keeper does not answer: %w%.0w", err, vmm.ErrSilent)
	case cuda.Code(err) == int(cuda.NotSupported): // it cannot be connected to; it may be about to end
		err = cuda.Refuse(cuda.NotSupported, "%w: %w", vmm.ErrSilent, err)
	case err != nil:
		err = fmt.Errorf("%w: %w", vmm.ErrSilent, err)
	case reply.Code == int(cuda.InvalidHandle) && share.PID == vmm.Keeper:
		err = fmt.Errorf("it was lost with a keeper that was killed: %w", vmm.ErrShareGone)
	case reply.Code == int(cuda.InvalidHandle):
		err = fmt.Errorf("it was freed: %w", vmm.ErrShareGone)
	case reply.Code == int(cuda.NotReady) && reply.Stopped:
		err = shareStopped{}
	case reply.Code == int(cuda.NotReady):
		err = fmt.Errorf("%w; resume it there first", vmm.ErrSharePaused)
	case !reply.OK:
		err = cuda.Refuse(cuda.Result(reply.Code), "%v refuses: %s", share, readable.Printable(reply.Error))
	}
	if err != nil && descriptor >= 0 {
		_ = unix.Close(descriptor)
		descriptor = -1
	}
	return reply, descriptor, err
}
