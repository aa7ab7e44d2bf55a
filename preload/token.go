package main

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"

	"tms/internal/machine/process"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
)

// Memory that a program made itself, in other processes: what token.c's files say, and their import. Other processes
// are asked as in ipc.go.

// tmsShareHandle fills in which process to ask, and for what. NOT_OURS: the driver is to be called, even if with its
// own handle.
//
//export tmsShareHandle
func tmsShareHandle(handle C.uint64_t, token *C.struct_ipc_handle) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		share, size, err := e.UserMapped().Name(cuda.Handle(handle))
		if errors.Is(err, vmm.ErrNotShareable) {
			return vmm.ErrNotOurs
		}
		if err == nil && share.PID == 0 {
			share.PID = os.Getpid()
			share.Start, _, err = process.Started(share.PID)
		}
		token.pid, token.start, token.id, token.size = C.uint32_t(share.PID), C.uint64_t(share.Start),
			C.uint64_t(share.ID), C.uint64_t(size)
		return err
	}))
}

// importHandleOperation returns a handle of a token's memory. For the process's own memory that is the existing handle.
type importHandleOperation struct {
	token  C.struct_ipc_handle
	device int
}

func (o *importHandleOperation) run(_ *Process, e *vmm.Engine) (uint64, error) {
	token := &o.token
	share := vmm.Share{PID: int(token.pid), Start: uint64(token.start), ID: uint64(token.id)}
	if share.PID == os.Getpid() {
		handle, err := e.UserMapped().RetainNamed(share.ID)
		return uint64(handle), err
	}
	if err := goruntime.Ready(o.device); err != nil {
		return 0, err
	}
	handle, err := e.UserMapped().Import(o.device, share)
	if err != nil {
		err = fmt.Errorf("importing memory of process %d: %w", share.PID, err)
	}
	return uint64(handle), err
}
