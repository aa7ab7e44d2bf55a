package main

// #include "shim.h"
import "C"

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/vmm"
	"tms/vmm/cuda"
)

// The process's part in sharing its devices (TMS_SHARE): others may pause it, and it has others make room.

// reportAllocation is report, and SHORT_OF_MEMORY where others may make room.
func reportAllocation(err error) C.int {
	code := report(err)
	if bool(C.region_config.share) && errors.Is(err, cuda.OutOfMemory) && !errors.Is(err, vmm.ErrTooLarge) &&
		!errors.Is(err, vmm.ErrLimit) {
		return C.SHORT_OF_MEMORY
	}
	return code
}

// shareState returns what the process knows itself of control.Share; nil: it does not share.
func shareState() *control.Share {
	if !C.region_config.share {
		return nil
	}
	of := &control.Share{Priority: float64(C.region_config.share_priority),
		AtLeast: float64(C.region_config.share_at_least), Waited: -1}
	if since := atomic.LoadInt64((*int64)(&C.share_wanted.since)); since != 0 {
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		of.Waited = time.Duration(now.Nano() - since).Seconds()
		of.Device = int(C.share_wanted.device)
		of.Bytes = atomic.LoadUint64((*uint64)(&C.share_wanted.bytes))
	}
	return of
}

func (thisProcess) Look() {
	if C.region_config.share && C.gate_unusable() == nil {
		idleFor()
	}
}

func (thisProcess) Wake() error {
	runtime.LockOSThread() // whose last error it is
	defer runtime.UnlockOSThread()
	if code := C.share_make_room(); code != 0 {
		return cuda.Refuse(cuda.Result(code), "%s", C.GoString(C.tms_last_error()))
	}
	return nil
}
