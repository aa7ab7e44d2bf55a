// Command preload is libtms.so, built with -buildmode=c-shared. The C files are what a thread of the host enters; this
// file is what they call once they have decided that the engine is needed. It has no policy: settings come as arguments,
// results go as codes.
//
// Its nouns: the host is the program that libtms.so is loaded into. The Process has what the library knows of the host
// beside C: its gate, its communicators of NCCL, its checkpoint, sets and pools, and the socket by which others steer it.
// An operation is a long call of the host, such as a pause, which runs on a thread of Go. A task is the same for a client
// of the socket. A repeat is an allocation that need not enter Go, because it has the memory of a free.
package main

/*
#cgo CFLAGS: -std=gnu11 -O2 -I${SRCDIR}/../region -I${SRCDIR}/../forward
#cgo LDFLAGS: -lpthread
#include <string.h>
#include "shim.h"
#include "tms.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	_ "tms/forward"      // the C functions that call the host's CUDA
	_ "tms/preload/gate" // the C functions that reach the gate of libtms_reach.so
	"tms/preload/goruntime"
	"tms/preload/watch"
	_ "tms/region" // the C functions that hold the threads' settings
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool/source"
	"tms/vmm/store"
)

func main() {}

// start returns the engine, made at the first call. After a failure the next call tries again, because the driver may
// appear later.
func (p *Process) start() (*vmm.Engine, error) {
	if made := p.engine.Load(); made != nil {
		return made, nil
	}
	p.starting.Lock()
	defer p.starting.Unlock()
	if made := p.engine.Load(); made != nil {
		return made, nil
	}
	opened, err := openDriver()
	if err != nil {
		var failed *cuda.Error
		if !errors.As(err, &failed) {
			err = fmt.Errorf("%w: %w", cuda.NoDevice, err)
		}
		return nil, err
	}
	p.driver = opened
	C.forward_resolve() // while nothing is paused: a thread that waits for a resume may have the loader's lock
	made := vmm.New(p.driver, p, vmm.Settings{
		Shareable:  bool(C.ipc_shares()),
		Invariants: bool(C.region_config.invariants),
	})
	p.pools.program = p.newProgramPools(made)
	watch.Engine(made)
	p.engine.Store(made)
	return made, nil
}

// openDriver does not wait for the loader's lock where CUDA is in use: a library's constructor may wait, with that lock,
// for the thread that comes here.
func openDriver() (*cuda.Driver, error) {
	find := func(name string) uintptr {
		return uintptr(C.forward_in_driver((*C.char)(goruntime.Terminated(name))))
	}
	if find("cuInit") != 0 {
		if opened, err := cuda.OpenLoaded(find); err == nil {
			return opened, nil
		} // a library in the driver's place may leave functions to one that it needs
	}
	return cuda.Open("libcuda.so.1")
}

// enter is goruntime.Run for what needs the engine.
func (p *Process) enter(f func(*vmm.Engine) error) error {
	return goruntime.Run(func() error {
		e, err := p.start()
		if err != nil {
			return err
		}
		return f(e)
	})
}

// onEngine does what cannot fail, if there can be an engine.
func (p *Process) onEngine(do func(*vmm.Engine)) {
	_ = p.enter(func(e *vmm.Engine) error { do(e); return nil })
}

// marshalled returns a value as malloc'ed JSON, nil when there is no memory.
func marshalled(value any) (*C.char, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return C.strndup((*C.char)(unsafe.Pointer(unsafe.SliceData(text))), C.size_t(len(text))), nil
}

// report returns the code for err, whose text becomes the calling thread's last error.
func report(err error) C.int {
	if err != nil {
		C.error_set((*C.char)(goruntime.Terminated(err.Error())))
	}
	return C.int(cuda.Code(err))
}

// helped makes a call of C that starts the command, and returns its failure.
func helped(call func() C.int) error {
	runtime.LockOSThread() // it has the text of the failure
	defer runtime.UnlockOSThread()
	if code := call(); code != 0 {
		return cuda.Refuse(cuda.Result(code), "%s", C.GoString(C.tms_last_error()))
	}
	return nil
}

// interned returns a text that lives as long as the process, as region_intern keeps them, without a copy.
func interned(text *C.char) string {
	bytes := (*byte)(unsafe.Pointer(text))
	length := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(bytes), length)) != 0 {
		length++
	}
	return unsafe.String(bytes, length)
}

// The numbers are the same, so that nothing is translated: with another index than 0 this does not compile.
func _() {
	same := [1]struct{}{}
	_ = same[C.REGION_NONE-vmm.BackupNone]
	_ = same[C.REGION_HOST-vmm.BackupHost]
	_ = same[C.REGION_DISK-vmm.BackupDisk]
	_ = same[C.REGION_SPARSE-vmm.BackupSparse]
	_ = same[C.REGION_PEER-vmm.BackupPeer]
}

// newRequest returns what a thread's settings ask for its allocations. Errors: cuda.OperatingSystem, wrapped.
func newRequest(device C.int, settings *C.struct_region_settings) (vmm.Request, error) {
	now := state()
	return vmm.Request{
		Device:      int(device),
		Tag:         interned(settings.tag),
		Backup:      vmm.BackupKind(min(settings.backup, C.REGION_PEER)),
		Incremental: bool(settings.incremental),
		Target:      max(-1, int(settings.backup)-C.REGION_PEER-1),
		Prompt:      (settings.backup == C.REGION_HOST || settings.backup == C.REGION_SPARSE) && bool(settings.mmap),
		Margin:      now.Margin,
		Reserve:     bool(C.region_config.share) && bool(C.share_keeps_reserve()),
		Limit:       uint64(C.region_config.limit_bytes),
		Capturing:   now.Capturing,
	}, goruntime.Ready(int(device))
}

// state returns what the engine needs to know about the process now.
func state() source.State {
	return source.State{
		Capturing: atomic.LoadInt32((*int32)(unsafe.Pointer(&C.captures))) != 0,
		Margin:    atomic.LoadUint64((*uint64)(unsafe.Pointer(&C.region_process.margin_bytes))),
	}
}

//export tmsMalloc
func tmsMalloc(address *unsafe.Pointer, size C.size_t, device C.int, context unsafe.Pointer,
	settings *C.struct_region_settings, ordered *C.struct_repeat_request) C.int {
	return reportAllocation(self.enter(func(e *vmm.Engine) error {
		if self.pools.program != nil {
			return self.poolMalloc(e, address, size, device, context, settings)
		}
		request, err := newRequest(device, settings)
		if err != nil {
			return err
		}
		request.Size = uint64(size)
		request.Context = cuda.Context(uintptr(context))
		if ordered != nil {
			request.Ordered, request.Stream = true, cuda.Stream(uintptr(ordered.stream))
			if ordered.context != nil {
				request.Repeated = repeated{ordered}
			}
			request.Keep = atomic.LoadUint64((*uint64)(unsafe.Pointer(&C.ordered_keep[device&(C.ORDERED_DEVICES-1)])))
		}
		made, err := e.Malloc(request)
		*(*uintptr)(unsafe.Pointer(address)) = made
		return err
	}))
}

//export tmsFree
func tmsFree(address unsafe.Pointer) C.int {
	return report(self.enter(func(e *vmm.Engine) error {
		if self.pools.program != nil {
			return self.pools.program.Free(uintptr(address))
		}
		return e.Free(uintptr(address), state().Capturing)
	}))
}

//export tmsFreeAfter
func tmsFreeAfter(address, stream unsafe.Pointer) C.int {
	return report(self.enter(func(e *vmm.Engine) error {
		if self.pools.program != nil {
			return self.pools.program.FreeAfter(uintptr(address), cuda.Stream(uintptr(stream)))
		}
		return e.FreeAfter(uintptr(address), cuda.Stream(uintptr(stream)))
	}))
}

//export tmsReset
func tmsReset(device C.int) {
	self.onEngine(func(e *vmm.Engine) {
		e.Reset(int(device))
		if self.pools.program != nil {
			self.pools.program.Reset(int(device))
		}
	})
}

//export tmsCaptureEnded
func tmsCaptureEnded() {
	self.onEngine(func(e *vmm.Engine) {
		if self.pools.program != nil {
			self.pools.program.FreeDeferred()
		}
		e.FreeDeferred()
	})
}

// maxWait is seconds in a century, which time.Duration can hold.
const maxWait = 100 * 365 * 24 * 3600

func seconds(given C.double) time.Duration {
	return time.Duration(min(float64(given), maxWait) * float64(time.Second))
}

// memoryWait returns how long a resume waits for memory that names no time itself.
func memoryWait() time.Duration { return seconds(C.tms_get_resume_wait()) }

//export tmsGrant
func tmsGrant() C.int {
	return report(self.enter(func(e *vmm.Engine) error { return e.Grant() }))
}

//export tmsTransitions
func tmsTransitions() (count C.uint64_t) {
	if e := self.engine.Load(); e != nil {
		_ = goruntime.Run(func() error {
			count = C.uint64_t(e.Records().Transitions())
			return nil
		})
	}
	return count
}

//export tmsPausedBy
func tmsPausedBy(tag *C.char) (last C.uint64_t) {
	if e := self.engine.Load(); e != nil {
		_ = goruntime.Run(func() error {
			last = C.uint64_t(e.Records().PausedBy(C.GoString(tag)))
			return nil
		})
	}
	return last
}

// tmsPrepare starts a preparation in the background, before any later call.
//
//export tmsPrepare
func tmsPrepare(tag *C.char) C.int {
	return report(self.enter(func(e *vmm.Engine) error {
		var tags []string
		if tag != nil {
			tags = []string{C.GoString(tag)}
		}
		finish := e.Prepare(tags)
		go func() {
			if err := goruntime.Run(finish); err != nil {
				goruntime.Log(err.Error())
			}
		}()
		return nil
	}))
}

//export tmsBackupPointer
func tmsBackupPointer(address unsafe.Pointer, size C.uint64_t) C.uintptr_t {
	var host uintptr
	report(self.enter(func(e *vmm.Engine) (err error) {
		self.sets.attaching.RLock() // reserved memory is, while it is copied
		defer self.sets.attaching.RUnlock()
		host, err = e.BackupPointer(uintptr(address), uint64(size), bool(C.checkpoint_asked()))
		if err == nil && host == 0 {
			err = fmt.Errorf("%#x has no host copy now: a pause makes one of segments with a cpu backup, and a resume "+
				"gives it up unless it is retained", uintptr(address))
		}
		return err
	}))
	return C.uintptr_t(host)
}

//export tmsLive
func tmsLive(address unsafe.Pointer, size C.size_t, ranges *C.size_t, count C.size_t) C.int {
	return report(self.enter(func(e *vmm.Engine) error {
		if address == nil {
			e.ForgetLive(nil)
			return nil
		}
		live, pairs := make([]store.Range, count), unsafe.Slice(ranges, 2*count)
		for i := range live {
			live[i] = store.Range{Offset: uint64(pairs[2*i]), Size: uint64(pairs[2*i+1])}
		}
		return e.Live(uintptr(address), uint64(size), live)
	}))
}

// tmsStats returns a malloc'ed text, nil when there is no memory. temporary is TMPDIR.
//
//export tmsStats
func tmsStats(version, temporary *C.char) (text *C.char) {
	err := self.enter(func(e *vmm.Engine) error {
		self.checkpoint.asking.RLock()
		defer self.checkpoint.asking.RUnlock()
		stats, err := self.statsOf(e, temporary)
		if err != nil {
			return err
		}
		if self.pools.program != nil {
			stats.Pools = self.pools.program.Stats()
		}
		text, err = marshalled(stats)
		return err
	})
	if err != nil {
		report(err)
		text, _ = marshalled(map[string]any{
			"version": C.GoString(version), "started": true, "everything": bool(C.checkpoint_asked()),
			"devices": []int{}, "waiting": []int{}, "capturing": false, "host_available_bytes": nil,
			"disk_directory": "", "pools": nil, "error": err.Error(),
		})
	}
	return text
}
