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
	"tms/vmm/pool/lifetime"
	"tms/vmm/pool/source"
)

// handles has the pools by the number that their tms_pool pointers hold: a pointer that is none of them
// is told from one that is.
var handles = struct {
	sync.RWMutex
	last uintptr // numbers are not used again
	open map[uintptr]*lifetime.Pool
}{open: map[uintptr]*lifetime.Pool{}}

// refusal is an error of the doors themselves: words with a code.
type refusal struct {
	words string
	code  cuda.Result
}

func (r refusal) Error() string { return r.words }

// Is makes errors.Is(err, cuda.OutOfMemory) work.
func (r refusal) Is(target error) bool { return target == r.code }

// poolCode is vmm.Code for errors of pools too.
func poolCode(err error) C.int {
	var own refusal
	if errors.As(err, &own) {
		return C.int(own.code)
	}
	for _, known := range []struct {
		err  error
		code cuda.Result
	}{
		{pool.ErrDestroyed, cuda.InvalidValue},
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
func newSource(e *vmm.Engine, device int, request *vmm.Request) (lifetime.Source, error) {
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
	return refusal{fmt.Sprintf("%s failed with cudaError %d", call, code), cuda.Result(code)}
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
		made, err := lifetime.New(from, func(from pool.Source) (pool.Pool, error) {
			return kinds.New(C.GoString(kind), from, parsed)
		})
		if err != nil {
			return err
		}
		handles.Lock()
		defer handles.Unlock()
		handles.last++
		handles.open[handles.last] = made
		*id = C.uintptr_t(handles.last)
		return nil
	})
	return reportAs(err, poolCode(err))
}

// poolOf returns the pool that a handle stands for. Errors: pool.ErrDestroyed; refusal for what never was one.
func poolOf(id C.uintptr_t) (*lifetime.Pool, error) {
	handles.RLock()
	defer handles.RUnlock()
	switch p := handles.open[uintptr(id)]; {
	case p != nil:
		return p, nil
	case id == 0:
		return nil, refusal{"the pool is NULL", cuda.InvalidValue}
	case uintptr(id) <= handles.last:
		return nil, pool.ErrDestroyed
	default:
		return nil, refusal{fmt.Sprintf("%#x is not a pool that tms_pool_create made", uintptr(id)), cuda.InvalidValue}
	}
}

// withPool calls f with the pool that a handle stands for.
func withPool(id C.uintptr_t, f func(pool.Pool) error) C.int {
	err := enter(func(*vmm.Engine) error {
		p, err := poolOf(id)
		if err != nil {
			return err
		}
		return p.Use(f)
	})
	return reportAs(err, poolCode(err))
}

//export tmsPoolMalloc
func tmsPoolMalloc(id C.uintptr_t, address *C.uintptr_t, size C.size_t, stream C.uintptr_t) C.int {
	return withPool(id, func(p pool.Pool) error {
		if err := room(); err != nil {
			return err
		}
		block, err := p.Malloc(uint64(size), pool.Stream(stream))
		*address = C.uintptr_t(block.Address)
		return err
	})
}

//export tmsPoolFree
func tmsPoolFree(id, address C.uintptr_t) C.int {
	return withPool(id, func(p pool.Pool) error { return p.Free(uintptr(address)) })
}

//export tmsPoolRecordStream
func tmsPoolRecordStream(id, address, stream C.uintptr_t) C.int {
	return withPool(id, func(p pool.Pool) error {
		recorder, ok := p.(pool.StreamRecorder)
		if !ok {
			return refusal{fmt.Sprintf("a pool of kind %s ignores streams, and holds nothing back for them; "+
				"caching does", p.Stats().Kind), cuda.NotSupported}
		}
		return recorder.RecordStream(uintptr(address), pool.Stream(stream))
	})
}

//export tmsPoolTrim
func tmsPoolTrim(id C.uintptr_t, released *C.size_t) C.int {
	return withPool(id, func(p pool.Pool) error {
		bytes, err := p.Trim()
		*released = C.size_t(bytes)
		return err
	})
}

// tmsPoolStats returns a malloc'ed text, nil when there is no such pool, or no memory.
//
//export tmsPoolStats
func tmsPoolStats(id C.uintptr_t) (text *C.char) {
	withPool(id, func(p pool.Pool) error {
		stats, err := json.Marshal(p.Stats())
		if err == nil {
			text = handOver(stats)
		}
		return err
	})
	return text
}

//export tmsPoolDestroy
func tmsPoolDestroy(id C.uintptr_t) C.int {
	err := enter(func(*vmm.Engine) error {
		p, err := poolOf(id)
		if err == nil {
			err = p.Destroy()
		}
		if err == nil {
			handles.Lock()
			delete(handles.open, uintptr(id))
			handles.Unlock()
		}
		return err
	})
	return reportAs(err, poolCode(err))
}
