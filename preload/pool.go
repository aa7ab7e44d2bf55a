package main

/*
#include <stdlib.h>
#include "seam.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/source"
)

// closing is a source that keeps something of its own until it is closed.
type closing interface {
	pool.Source
	Close() error
}

// opened is what a tms_pool stands for.
type opened struct {
	pool   pool.Pool
	source closing
}

// handles has the pools by the number that their tms_pool pointers hold: a pointer that is none of them
// is told from one that is.
var handles = struct {
	sync.RWMutex
	last uintptr
	open map[uintptr]opened
}{open: map[uintptr]opened{}}

// errNoPool: the tms_pool was destroyed, or never made.
var errNoPool = fmt.Errorf("%w: not a pool that exists", pool.ErrOption)

// poolCode is vmm.Code for errors of pools too.
func poolCode(err error) C.int {
	for _, known := range []struct {
		err  error
		code cuda.Result
	}{
		{pool.ErrOutOfMemory, cuda.OutOfMemory},
		{pool.ErrTooLarge, cuda.OutOfMemory},
		{pool.ErrInvalidAddress, cuda.InvalidValue},
		{pool.ErrOption, cuda.InvalidValue},
		{pool.ErrGraphPool, cuda.InvalidValue},
		{pool.ErrCapturing, cuda.StreamCaptureUnsupported},
	} {
		if errors.Is(err, known.err) {
			return C.int(known.code)
		}
	}
	return C.int(vmm.Code(err))
}

// state is source.State of the process now.
func state() source.State {
	return source.State{Capturing: bool(C.pool_capturing()), Margin: uint64(C.pool_margin())}
}

// newSource makes the source of a pool on a device, of pausable segments as the request has them, or nil:
// of CUDA's own memory.
func newSource(e *vmm.Engine, device int, request *vmm.Request) (closing, error) {
	if request != nil {
		return source.NewSegments(e, driver, *request, state)
	}
	return source.NewPlain(e, driver, device, func(size uint64) (uintptr, error) {
		var address unsafe.Pointer
		code := C.pool_cuda_malloc(&address, C.size_t(size), C.int(device))
		return uintptr(address), failed("cudaMalloc", code)
	}, func(address uintptr) error {
		return failed("cudaFree", C.pool_cuda_free(C.uintptr_t(address), C.int(device)))
	}, state)
}

func failed(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", call, cuda.Result(code))
}

//export tmsPoolCreate
func tmsPoolCreate(id *C.uintptr_t, kind, options *C.char, device C.int, tag *C.char, flags C.uint, target C.int) C.int {
	err := enter(func(e *vmm.Engine) error {
		var request *vmm.Request
		if flags&C.POOL_IN_REGION != 0 {
			made, err := newRequest(device, tag, flags, target)
			if err != nil {
				return err
			}
			request = &made
		}
		parsed, err := pool.ParseOptions(C.GoString(options))
		if err != nil {
			return err
		}
		from, err := newSource(e, int(device), request)
		if err != nil {
			return err
		}
		made, err := kinds.New(C.GoString(kind), from, parsed)
		if err != nil {
			return err
		}
		handles.Lock()
		defer handles.Unlock()
		handles.last++
		handles.open[handles.last] = opened{made, from}
		*id = C.uintptr_t(handles.last)
		return nil
	})
	return reportAs(err, poolCode(err))
}

// withPool calls f with the pool that a handle stands for.
func withPool(id C.uintptr_t, f func(opened) error) C.int {
	err := enter(func(*vmm.Engine) error {
		handles.RLock()
		p, found := handles.open[uintptr(id)]
		handles.RUnlock()
		if !found {
			return errNoPool
		}
		return f(p)
	})
	return reportAs(err, poolCode(err))
}

//export tmsPoolMalloc
func tmsPoolMalloc(id C.uintptr_t, address *C.uintptr_t, size C.size_t, stream C.uintptr_t) C.int {
	return withPool(id, func(p opened) error {
		block, err := p.pool.Malloc(uint64(size), pool.Stream(stream))
		*address = C.uintptr_t(block.Address)
		return err
	})
}

//export tmsPoolFree
func tmsPoolFree(id, address C.uintptr_t) C.int {
	return withPool(id, func(p opened) error { return p.pool.Free(uintptr(address)) })
}

//export tmsPoolRecordStream
func tmsPoolRecordStream(id, address, stream C.uintptr_t) C.int {
	return withPool(id, func(p opened) error {
		recorder, ok := p.pool.(pool.StreamRecorder)
		if !ok {
			return fmt.Errorf("a pool of kind %s ignores streams: %w", p.pool.Stats().Kind, cuda.NotSupported)
		}
		return recorder.RecordStream(uintptr(address), pool.Stream(stream))
	})
}

//export tmsPoolTrim
func tmsPoolTrim(id C.uintptr_t, released *C.size_t) C.int {
	return withPool(id, func(p opened) error {
		bytes, err := p.pool.Trim()
		*released = C.size_t(bytes)
		return err
	})
}

// tmsPoolStats returns a malloc'ed text, nil when there is no such pool.
//
//export tmsPoolStats
func tmsPoolStats(id C.uintptr_t) (text *C.char) {
	withPool(id, func(p opened) error {
		stats, err := json.Marshal(p.pool.Stats())
		if err == nil {
			text = C.CString(string(stats))
		}
		return err
	})
	return text
}

//export tmsPoolDestroy
func tmsPoolDestroy(id C.uintptr_t) C.int {
	return withPool(id, func(p opened) error {
		if err := errors.Join(p.pool.Destroy(), p.source.Close()); err != nil {
			return err
		}
		handles.Lock()
		defer handles.Unlock()
		delete(handles.open, uintptr(id))
		return nil
	})
}
