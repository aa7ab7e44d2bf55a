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
	"slices"
	"sync"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/streams"
)

// torchKey is what the allocations of one of PyTorch's pools have in common. Tags are interned, so their
// addresses tell them apart.
type torchKey struct {
	device int
	tag    *C.char
	flags  C.uint
	target C.int
}

type torchPool struct {
	torchKey
	pool pool.Pool
}

// torch is what serves PyTorch: a pool for each device and for each way of being pausable.
var torch = struct {
	sync.RWMutex
	kind, options string // kind "": not chosen yet
	byKey         map[torchKey]pool.Pool
	all           []torchPool
	fractions     map[int]float64
	captures      map[int][]pool.GraphPoolID // being allocated to, by device
}{byKey: map[torchKey]pool.Pool{}, fractions: map[int]float64{}, captures: map[int][]pool.GraphPoolID{}}

// limitless is a source for finding out whether options are valid.
type limitless struct{ *pool.Range }

func (limitless) Memory() (free, total uint64, err error) { return 1 << 50, 1 << 50, nil }

//export tmsTorchPoolUse
func tmsTorchPoolUse(kind, options *C.char) C.int {
	err := enter(func(*vmm.Engine) error {
		torch.Lock()
		defer torch.Unlock()
		wanted, settings := C.GoString(kind), C.GoString(options)
		if torch.kind != "" {
			if wanted == torch.kind && settings == torch.options {
				return nil
			}
			return refusal{fmt.Sprintf("this process uses %s for PyTorch already, with the options %q; it is one choice "+
				"for the life of a process", torch.kind, torch.options), cuda.InvalidValue}
		}
		if _, err := newKind(limitless{pool.NewRange(1<<20, 1<<50)}, wanted, settings); err != nil {
			return err
		}
		torch.kind, torch.options = wanted, settings
		return nil
	})
	return reportAs(err, poolCode(err))
}

func newKind(from pool.Source, kind, options string) (pool.Pool, error) {
	parsed, err := pool.ParseOptions(options)
	if err != nil {
		return nil, err
	}
	return kinds.New(kind, from, parsed)
}

// torchPoolOf returns the pool of a key, made at the first call.
func torchPoolOf(e *vmm.Engine, key torchKey) (pool.Pool, error) {
	torch.RLock()
	known, chosen := torch.byKey[key], torch.kind != ""
	torch.RUnlock()
	if known != nil {
		return known, nil
	}
	if !chosen {
		return nil, refusal{"no kind of pool is chosen for PyTorch; call tms_torch_pool_use first", cuda.InvalidValue}
	}
	torch.Lock()
	defer torch.Unlock()
	if known := torch.byKey[key]; known != nil {
		return known, nil
	}
	made, err := newTorchPool(e, key)
	if err != nil {
		return nil, err
	}
	torch.byKey[key] = made
	torch.all = append(torch.all, torchPool{key, made})
	return made, nil
}

// newTorchPool makes a pool that is as those there are: limited, and with the captures that go on.
func newTorchPool(e *vmm.Engine, key torchKey) (pool.Pool, error) {
	var request *vmm.Request
	if key.flags&C.POOL_IN_REGION != 0 {
		made, err := newRequest(C.int(key.device), key.tag, key.flags, key.target)
		if err != nil {
			return nil, err
		}
		request = &made
	}
	from, err := newSource(e, key.device, request)
	if err != nil {
		return nil, err
	}
	made, err := streams.New(from, func(from pool.Source) (pool.Pool, error) {
		return newKind(from, torch.kind, torch.options)
	})
	if err != nil {
		return nil, err
	}
	if fraction, limited := torch.fractions[key.device]; limited {
		if err := limit(made, fraction); err != nil {
			return nil, err
		}
	}
	for _, id := range torch.captures[key.device] {
		if err := made.(pool.GraphPools).BeginAllocateToPool(id, isCaptured); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func limit(p pool.Pool, fraction float64) error {
	return p.(interface{ SetMemoryFraction(float64) error }).SetMemoryFraction(fraction)
}

func isCaptured(stream pool.Stream) bool { return bool(C.pool_is_captured(C.uintptr_t(stream))) }

//export tmsTorchPoolMalloc
func tmsTorchPoolMalloc(address *C.uintptr_t, size C.size_t, device C.int, stream C.uintptr_t, tag *C.char, flags C.uint, target C.int) C.int {
	err := enter(func(e *vmm.Engine) error {
		p, err := torchPoolOf(e, torchKey{int(device), tag, flags, target})
		if err == nil {
			err = room()
		}
		if err != nil {
			return err
		}
		block, err := p.Malloc(uint64(size), pool.Stream(stream))
		*address = C.uintptr_t(block.Address)
		return err
	})
	return reportAs(err, poolCode(err))
}

// inTorchPools calls f for the pools in turn until one knows the address.
func inTorchPools(f func(pool.Pool) error) C.int {
	err := enter(func(*vmm.Engine) error {
		torch.RLock()
		all := torch.all
		torch.RUnlock()
		err := fmt.Errorf("PyTorch has no pool yet: %w", pool.ErrInvalidAddress)
		for _, p := range all {
			if err = f(p.pool); !errors.Is(err, pool.ErrInvalidAddress) {
				break
			}
		}
		return err
	})
	return reportAs(err, poolCode(err))
}

//export tmsTorchPoolFree
func tmsTorchPoolFree(address C.uintptr_t) C.int {
	return inTorchPools(func(p pool.Pool) error { return p.Free(uintptr(address)) })
}

//export tmsTorchPoolRecordStream
func tmsTorchPoolRecordStream(address, stream C.uintptr_t) C.int {
	return inTorchPools(func(p pool.Pool) error {
		return p.(pool.StreamRecorder).RecordStream(uintptr(address), pool.Stream(stream))
	})
}

// withTorchPools calls f for the pools of a device, while no pool is made.
func withTorchPools(device C.int, f func(pool.Pool) error, after func()) C.int {
	err := enter(func(*vmm.Engine) error {
		torch.Lock()
		defer torch.Unlock()
		for _, p := range torch.all {
			if p.device == int(device) {
				if err := f(p.pool); err != nil {
					return err
				}
			}
		}
		after()
		return nil
	})
	return reportAs(err, poolCode(err))
}

//export tmsTorchPoolReset
func tmsTorchPoolReset() C.int {
	err := enter(func(*vmm.Engine) (failed error) {
		torch.RLock()
		all := torch.all
		torch.RUnlock()
		for _, p := range all {
			// PyTorch's own passes over what is being captured to.
			if _, err := p.pool.Trim(); !errors.Is(err, pool.ErrCapturing) {
				failed = errors.Join(failed, err)
			}
		}
		return failed
	})
	return reportAs(err, poolCode(err))
}

//export tmsTorchPoolMemoryFraction
func tmsTorchPoolMemoryFraction(fraction C.double, device C.int) C.int {
	return withTorchPools(device, func(p pool.Pool) error { return limit(p, float64(fraction)) },
		func() { torch.fractions[int(device)] = float64(fraction) })
}

func graphID(first, second C.uint64_t) pool.GraphPoolID {
	return pool.GraphPoolID{uint64(first), uint64(second)}
}

//export tmsTorchPoolBegin
func tmsTorchPoolBegin(device C.int, first, second C.uint64_t) C.int {
	id := graphID(first, second)
	return withTorchPools(device, func(p pool.Pool) error {
		return p.(pool.GraphPools).BeginAllocateToPool(id, isCaptured)
	}, func() { torch.captures[int(device)] = append(torch.captures[int(device)], id) })
}

//export tmsTorchPoolEnd
func tmsTorchPoolEnd(device C.int, first, second C.uint64_t) C.int {
	id := graphID(first, second)
	return withTorchPools(device, func(p pool.Pool) error {
		return p.(pool.GraphPools).EndAllocateToPool(id)
	}, func() {
		torch.captures[int(device)] = slices.DeleteFunc(torch.captures[int(device)],
			func(other pool.GraphPoolID) bool { return other == id })
	})
}

//export tmsTorchPoolRelease
func tmsTorchPoolRelease(device C.int, first, second C.uint64_t) C.int {
	id := graphID(first, second)
	return withTorchPools(device, func(p pool.Pool) error {
		// A pool that was made after the graph was captured does not know it.
		if err := p.(pool.GraphPools).ReleasePool(id); !errors.Is(err, pool.ErrGraphPool) {
			return err
		}
		return nil
	}, func() {})
}

// torchStats is an entry of tms_torch_pool_stats_json.
type torchStats struct {
	Device int        `json:"device"`
	Tag    *string    `json:"tag"` // nil: not pausable
	Stats  pool.Stats `json:"stats"`
}

// tmsTorchPoolStats returns a malloc'ed text.
//
//export tmsTorchPoolStats
func tmsTorchPoolStats() *C.char {
	all := []torchStats{}
	_ = enter(func(*vmm.Engine) error {
		torch.RLock()
		defer torch.RUnlock()
		for _, p := range torch.all {
			entry := torchStats{Device: p.device, Stats: p.pool.Stats()}
			if p.flags&C.POOL_IN_REGION != 0 {
				tag := vmm.TagText(C.GoString(p.tag))
				entry.Tag = &tag
			}
			all = append(all, entry)
		}
		return nil
	})
	text, err := json.Marshal(all)
	if err != nil {
		reportAs(err, C.int(vmm.Code(err)))
		text = []byte("[]")
	}
	return handOver(text)
}
