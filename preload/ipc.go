package main

/*
#include "shim.h"
*/
import "C"

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/process"
	"tms/internal/readable"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// Memory that processes share by CUDA's handles (ipc.c): what the handles hold, and how an importer asks the exporting
// process for the memory, over its control socket (lend.go). Descriptors stay open only while a call lasts.

// By default, a pause waits pauseWait for other processes to unmap this one's memory, and a resume waits resumeWait for
// theirs to be back. Both cover the time between the ranks of a job that do the same; a resume's includes the contents.
const (
	pauseWait  = 10 * time.Second
	resumeWait = time.Minute
)

// answerWithin is how long another process may take to answer.
const answerWithin = 5 * time.Second

//export tmsShare
func tmsShare(address C.uintptr_t, handle *C.struct_ipc_handle) C.int {
	return report(enter(func(e *vmm.Engine) error {
		if base, _ := e.RangeOf(uintptr(address)); programPools != nil && base != uintptr(address) {
			return cuda.Refuse(cuda.NotSupported, "memory of a pool (TMS_INIT_POOL) is shared with other processes "+
				"only as the whole segment of the pool; allocate it outside regions")
		}
		id, offset, size, err := e.Share(uintptr(address))
		if err != nil {
			return err
		}
		start, _, err := process.Started(unix.Getpid())
		handle.start, handle.id = C.uint64_t(start), C.uint64_t(id)
		handle.offset, handle.size = C.uint64_t(offset), C.uint64_t(size)
		return err
	}))
}

// tmsRangeOf fills in where the allocation around an address begins, and its size; 0: there is none.
//
//export tmsRangeOf
func tmsRangeOf(address C.uintptr_t, base *C.uintptr_t, size *C.size_t) {
	_ = enter(func(e *vmm.Engine) error {
		begins, bytes := e.RangeOf(uintptr(address))
		*base, *size = C.uintptr_t(begins), C.size_t(bytes)
		return nil
	})
}

// importMemory opens a handle that ipc.c made, for a device.
func importMemory(e *vmm.Engine, operation *C.struct_operation) (uint64, error) {
	handle := &operation.ipc
	share := vmm.Share{PID: int(handle.pid), Start: uint64(handle.start), ID: uint64(handle.id)}
	if share.PID == unix.Getpid() {
		return 0, cuda.Refuse(cuda.InvalidContext, "the handle names memory of this process itself: use the address "+
			"that it was made of")
	}
	if err := goruntime.Ready(int(operation.device)); err != nil {
		return 0, err
	}
	address, err := e.Import(int(operation.device), share, uint64(handle.offset))
	if err != nil {
		err = fmt.Errorf("opening memory of process %d: %w", share.PID, err)
	}
	return uint64(address), err
}

// processes lets the engine ask other processes.
type processes struct{}

func (processes) Gone(i vmm.Importer) bool { return ended(i.PID, i.Start) }

// ended reports whether a process has ended.
func ended(pid int, start uint64) bool {
	now, zombie, err := process.Started(pid)
	return errors.Is(err, fs.ErrNotExist) || err == nil && (zombie || now != start)
}

// Return sends the notice without waiting for an answer: a stopped process reads it when it goes on.
func (processes) Return(share vmm.Share, number uint64) error {
	if ended(share.PID, share.Start) {
		return nil
	}
	socket, err := find(share.PID, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	line := control.Line(control.Request{Version: control.Version, Op: control.Returned, Share: share.ID,
		Import: number})
	return again(func() error { return unix.Sendmsg(socket, line, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) })
}

func (processes) Fetch(share vmm.Share, number uint64) (vmm.Lent, error) {
	reply, descriptor, err := ask(share, control.Request{Op: control.Lend, Share: share.ID, Import: number})
	if err == nil && descriptor < 0 {
		err = errors.New("the memory did not come with the answer: no room for a descriptor?")
	}
	return vmm.Lent{Descriptor: descriptor, Extent: reply.Extent, Offset: reply.Offset, Size: reply.Bytes,
		Tag: stats.TagName(reply.Tag), Device: reply.Device}, err
}

// ask sends a request and returns the reply and the descriptor that came with it, or -1.
// Errors: vmm.ErrShareGone, also if the process has ended, and vmm.ErrSharePaused.
func ask(share vmm.Share, r control.Request) (reply control.Reply, descriptor int, err error) {
	descriptor = -1
	if ended(share.PID, share.Start) {
		return reply, descriptor, fmt.Errorf("the process has ended: %w", vmm.ErrShareGone)
	}
	socket, err := dial(share.PID)
	if err != nil { // it may be about to end
		return reply, descriptor, cuda.Refuse(cuda.NotSupported, "%w: %w", vmm.ErrSilent, err)
	}
	defer func() { _ = unix.Close(socket) }()
	r.Version, r.ID = control.Version, 1
	line := control.Line(r)
	if err = again(func() error { return unix.Sendmsg(socket, line, nil, nil, unix.MSG_NOSIGNAL) }); err == nil {
		reply, descriptor, err = receive(socket)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", vmm.ErrSilent, err)
	case reply.Code == int(cuda.InvalidHandle):
		err = fmt.Errorf("it was freed: %w", vmm.ErrShareGone)
	case reply.Code == int(cuda.NotReady):
		err = fmt.Errorf("%w; resume it there first", vmm.ErrSharePaused)
	case !reply.OK:
		err = cuda.Refuse(cuda.Result(reply.Code), "the process refuses: %s", readable.Printable(reply.Error))
	}
	if err != nil && descriptor >= 0 {
		_ = unix.Close(descriptor)
		descriptor = -1
	}
	return reply, descriptor, err
}

// receive reads a reply and the descriptor that comes with it.
func receive(socket int) (reply control.Reply, descriptor int, err error) {
	descriptor = -1
	var line []byte
	buffer, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for len(line) == 0 || line[len(line)-1] != '\n' {
		var n, m int
		if err := again(func() (err error) {
			n, m, _, _, err = unix.Recvmsg(socket, buffer, rights, unix.MSG_CMSG_CLOEXEC)
			return err
		}); err != nil {
			return reply, descriptor, err
		}
		if n == 0 || len(line) > control.MaxLine {
			return reply, descriptor, errors.New("its answer has no end")
		}
		if passed, err := rightsIn(rights[:m]); err == nil && passed >= 0 {
			descriptor = passed
		}
		line = append(line, buffer[:n]...)
	}
	return reply, descriptor, json.Unmarshal(bytes.TrimSpace(line), &reply)
}

// dial connects to the control socket of a process of this user. It waits for a process that replaces its socket.
func dial(pid int) (socket int, err error) {
	socket, err = find(pid, answerWithin)
	until := time.Now().Add(control.LookFor)
	for missed := 0; err != nil && missed < 2 && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if missed++; control.Lost(pid) {
			missed = 0
		}
		socket, err = find(pid, answerWithin)
	}
	return socket, err
}

// find connects to the control socket of a process, whichever directory has it. It waits up to patience for the process
// to accept, and later sends and receives wait no longer; 0: none waits.
func find(pid int, patience time.Duration) (socket int, err error) {
	user := unix.Geteuid()
	err = fs.ErrNotExist
	runtimeDir, temporary := C.GoString(C.control_environment.runtime_dir), C.GoString(C.control_environment.temporary)
	for _, directory := range control.AllDirectories(runtimeDir, temporary, user) {
		if control.CheckDirectory(directory, user) != nil {
			continue
		}
		var found int
		if found, err = connect(directory, pid, patience); err != nil {
			continue
		}
		peer, err := unix.GetsockoptUcred(found, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && int(peer.Uid) == user && int(peer.Pid) == pid {
			return found, nil
		}
		_ = unix.Close(found)
	}
	return -1, cuda.Refuse(cuda.NotSupported, "process %d has no control socket that could be found (%v): it must be "+
		"of the same user and container, and have the same XDG_RUNTIME_DIR and TMPDIR", pid, err)
}

func connect(directory string, pid int, patience time.Duration) (int, error) {
	descriptor, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(descriptor) }()
	kind := unix.SOCK_STREAM | unix.SOCK_CLOEXEC
	if patience == 0 {
		kind |= unix.SOCK_NONBLOCK
	}
	socket, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	for _, which := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err == nil {
			err = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, which, &limit)
		}
	}
	address := &unix.SockaddrUnix{Name: control.Address(directory, descriptor, pid)}
	for start := time.Now(); err == nil; time.Sleep(time.Millisecond) {
		err = again(func() error { return unix.Connect(socket, address) })
		if !errors.Is(err, unix.EAGAIN) || time.Since(start) >= patience { // EAGAIN: too many at once
			break
		}
		err = nil
	}
	if err != nil {
		_ = unix.Close(socket)
		return -1, err
	}
	return socket, nil
}

// again makes a system call until no signal interrupts it.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
