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
	"tms/internal/control/server"
	"tms/vmm"
	"tms/vmm/cuda"
)

// The process's part in sharing its devices (TMS_SHARE): others may pause it, and it has others make room.

// reportAllocation is report, and SHORT_OF_MEMORY where others may make room.
func reportAllocation(err error) C.int {
	code := report(err)
	if bool(C.region_config.share) && (errors.Is(err, cuda.OutOfMemory) || errors.Is(err, vmm.ErrMargin)) {
		return C.SHORT_OF_MEMORY
	}
	return code
}

// sharing completes the server's part of a status, or returns nil if the process does not share.
func (p *Process) sharing(of *control.Share) *control.Share {
	if !C.region_config.share {
		return nil
	}
	of.Priority, of.AtLeast = float64(C.region_config.share_priority), float64(C.region_config.share_at_least)
	of.HostLimit = uint64(C.region_config.share_host_limit)
	of.Disk = C.region_process.disk_backup_dir != nil
	of.Grew = -1
	if grew := atomic.LoadInt64((*int64)(&C.share_wanted.grew)); grew != 0 {
		of.Grew = monotonic(grew).Seconds()
	}
	if since := atomic.LoadInt64((*int64)(&C.share_wanted.since)); since != 0 {
		of.Waited = max(of.Waited, monotonic(since).Seconds())
		of.UUID = p.uuidOf(int(C.share_wanted.device))
		of.Resumes = bool(C.share_wanted.resumes)
		of.Bytes = atomic.LoadUint64((*uint64)(&C.share_wanted.bytes))
	}
	return of
}

// monotonic returns the time since a moment of CLOCK_MONOTONIC, in nanoseconds.
func monotonic(since int64) time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano() - since)
}

// Waits includes the wait in progress. A wait that ends during the call may count twice for a moment.
func (p *Process) Waits() time.Duration {
	since := atomic.LoadInt64((*int64)(&C.share_wanted.since))
	waited := time.Duration(atomic.LoadInt64((*int64)(&C.share_wanted.waited)))
	if since != 0 {
		waited += monotonic(since)
	}
	return waited
}

// uuidOf returns a device's UUID, "" if the driver does not tell. The process need not have a context there yet.
func (p *Process) uuidOf(ordinal int) string {
	if C.checkpoint_asked() {
		return ""
	}
	if _, err := p.start(); err != nil {
		return ""
	}
	uuid, err := p.driver.DeviceUUID(cuda.Device(ordinal))
	if err != nil {
		return ""
	}
	return uuid
}

// resumeShared is resumeGated, but has other processes make room. What they do not lend, the resume waits for.
func (p *Process) resumeShared(e *vmm.Engine, options vmm.Options) (bytes uint64, err error) {
	if !C.region_config.share {
		return p.resumeGated(e, options)
	}
	rooms := 0
	defer func() {
		if rooms > 0 {
			C.share_leave()
			runtime.UnlockOSThread()
		}
	}()
	options.MakeRoom = func(ordinal int, bytes uint64) bool {
		if rooms++; rooms == 1 {
			runtime.LockOSThread() // which has C's lock
			C.share_enter()
		}
		return rooms <= roomsMost && C.share_want(C.size_t(bytes), C.int(ordinal), true) == 0
	}
	return p.resumeGated(e, options)
}

// roomsMost bounds the tries of a resume for which room was made and then taken by others.
const roomsMost = 64

func (p *Process) Look() {
	if C.region_config.share && C.gate_unusable() == nil {
		p.idleFor()
	}
}

func (p *Process) Wake() error {
	if !bool(C.region_config.share) {
		return server.ErrAlone
	}
	return helped(func() C.int { return C.share_make_room() })
}
