package main

// #include "shim.h"
import "C"

import (
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/pool"
	"tms/vmm/pool/torch"
)

func (p *Process) torchSource(m torch.Memory) (pool.DeviceSource, error) {
	e, err := p.start()
	if err != nil {
		return nil, err
	}
	return p.newSource(e, m)
}

func isCaptured(stream pool.Stream) bool { return bool(C.pool_is_captured(C.uintptr_t(stream))) }

// forTorch calls f once there is an engine.
func (p *Process) forTorch(f func() error) C.int {
	return report(p.enter(func(*vmm.Engine) error { return f() }))
}

//export tmsTorchPoolUse
func tmsTorchPoolUse(kind, options *C.char) C.int {
	return self.forTorch(func() error { return self.pools.torch.Use(C.GoString(kind), C.GoString(options)) })
}

//export tmsTorchPoolMalloc
func tmsTorchPoolMalloc(address *C.uintptr_t, size C.size_t, device C.int, stream C.uintptr_t,
	settings *C.struct_region_settings) C.int {
	return self.forTorch(func() error {
		memory, err := memoryOf(device, settings)
		if err == nil {
			err = goruntime.Room()
		}
		if err != nil {
			return err
		}
		block, err := self.pools.torch.Malloc(memory, uint64(size), pool.Stream(stream))
		*address = C.uintptr_t(block.Address)
		return err
	})
}

//export tmsTorchPoolFree
func tmsTorchPoolFree(address C.uintptr_t) C.int {
	return self.forTorch(func() error { return self.pools.torch.Free(uintptr(address)) })
}

//export tmsTorchPoolRecordStream
func tmsTorchPoolRecordStream(address, stream C.uintptr_t) C.int {
	return self.forTorch(func() error { return self.pools.torch.RecordStream(uintptr(address), pool.Stream(stream)) })
}

//export tmsTorchPoolReset
func tmsTorchPoolReset() C.int {
	return self.forTorch(func() error {
		_, err := self.pools.torch.Trim()
		return err
	})
}

//export tmsTorchPoolMemoryFraction
func tmsTorchPoolMemoryFraction(fraction C.double, device C.int) C.int {
	return self.forTorch(func() error { return self.pools.torch.SetMemoryFraction(int(device), float64(fraction)) })
}

func graphID(first, second C.uint64_t) pool.GraphPoolID {
	return pool.GraphPoolID{uint64(first), uint64(second)}
}

//export tmsTorchPoolBegin
func tmsTorchPoolBegin(device C.int, first, second C.uint64_t) C.int {
	return self.forTorch(func() error { return self.pools.torch.BeginAllocateToPool(int(device), graphID(first, second)) })
}

//export tmsTorchPoolEnd
func tmsTorchPoolEnd(device C.int, first, second C.uint64_t) C.int {
	return self.forTorch(func() error { return self.pools.torch.EndAllocateToPool(int(device), graphID(first, second)) })
}

//export tmsTorchPoolRelease
func tmsTorchPoolRelease(device C.int, first, second C.uint64_t) C.int {
	return self.forTorch(func() error { return self.pools.torch.ReleasePool(int(device), graphID(first, second)) })
}

// torchList returns a list as malloc'ed JSON, empty without an engine.
func torchList[T any](list func(*torch.Pools) []T) (text *C.char) {
	self.forTorch(func() (err error) {
		text, err = marshalled(list(self.pools.torch))
		return err
	})
	if text == nil {
		text, _ = marshalled([]T{})
	}
	return text
}

//export tmsTorchPoolStats
func tmsTorchPoolStats() *C.char { return torchList((*torch.Pools).Stats) }

//export tmsTorchPoolSnapshot
func tmsTorchPoolSnapshot() *C.char { return torchList((*torch.Pools).Snapshots) }

//export tmsTorchPoolResetPeakStats
func tmsTorchPoolResetPeakStats() C.int {
	return self.forTorch(func() error {
		self.pools.torch.ResetPeakStats()
		return nil
	})
}
