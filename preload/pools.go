package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/lifetime"
	"tms/vmm/pool/program"
	"tms/vmm/pool/source"
	"tms/vmm/pool/torch"
	"tms/vmm/stats"
)

// pools are what serves allocations in place of the engine.
type pools struct {
	handles lifetime.Handles // of C programs, by what their tms_pool pointers hold
	torch   *torch.Pools     // of PyTorch (tms.use_allocator)
	program *program.Pools   // of the program's cudaMalloc in regions, if TMS_INIT_POOL asks for them; else nil

	mu    sync.Mutex
	plain map[int]int64 // bytes of segments that are CUDA's own memory, by device
}

// note counts memory that a pool has taken from CUDA itself, or gives back.
func (p *pools) note(device int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plain == nil {
		p.plain = map[int]int64{}
	}
	p.plain[device] += bytes
}

// addTo adds that memory to the statistics.
func (p *pools) addTo(devices []stats.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range devices {
		devices[i].AddPools(uint64(max(0, p.plain[devices[i].Device])))
	}
}

// newSource makes the source of a pool's segments.
func (p *Process) newSource(e *vmm.Engine, m torch.Memory) (lifetime.Source, error) {
	if m.Pausable {
		return source.NewSegments(e, p.driver, m.Request, state)
	}
	return source.NewPlain(p.driver, m.Device, func(size uint64) (uintptr, error) {
		var address unsafe.Pointer
		code := C.pool_cuda_malloc(&address, C.size_t(size), C.int(m.Device))
		return uintptr(address), failed("cudaMalloc", code)
	}, func(address uintptr) error {
		return failed("cudaFree", C.pool_cuda_free(C.uintptr_t(address), C.int(m.Device)))
	}, state, func(bytes int64) {
		_ = e.Include(m.Device) // the source knows the device
		p.pools.note(m.Device, bytes)
	})
}

// memoryOf returns the kind of memory that a thread's settings give its pools. Errors: as newRequest.
func memoryOf(device C.int, settings *C.struct_region_settings) (torch.Memory, error) {
	m := torch.Memory{Device: int(device), Pausable: bool(settings.active)}
	if !m.Pausable {
		return m, nil
	}
	var err error
	m.Request, err = newRequest(device, settings)
	m.Request.Reserve = false // a pool is not asked again without it
	return m, err
}

func failed(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s failed: %w", call, cuda.Result(code))
}

//export tmsPoolCreate
func tmsPoolCreate(handle *C.uintptr_t, kind, options *C.char, device C.int, settings *C.struct_region_settings) C.int {
	return report(self.enter(func(e *vmm.Engine) error {
		memory, err := memoryOf(device, settings)
		if err != nil {
			return err
		}
		parsed, err := pool.ParseOptions(C.GoString(options))
		if err != nil {
			return err
		}
		var from lifetime.Source
		if of := parsed.Text("memory", "device"); of == "device" {
			from, err = self.newSource(e, memory)
		} else {
			from, err = source.NewHost(self.driver, memory.Device, of, state)
		}
		if err != nil {
			return err
		}
		made, err := lifetime.New(from, func(from pool.Source) (pool.Pool, error) {
			return kinds.New(C.GoString(kind), from, parsed)
		})
		if err != nil {
			return err
		}
		*handle = C.uintptr_t(self.pools.handles.Add(made))
		return nil
	}))
}

// withPool calls f with the pool that a handle stands for.
func (p *Process) withPool(handle C.uintptr_t, f func(pool.Pool) error) C.int {
	return report(p.enter(func(*vmm.Engine) error {
		made, err := p.pools.handles.Pool(uintptr(handle))
		if err != nil {
			return err
		}
		return made.Use(f)
	}))
}

//export tmsPoolMalloc
func tmsPoolMalloc(handle C.uintptr_t, address *C.uintptr_t, size C.size_t, stream C.uintptr_t) C.int {
	return self.withPool(handle, func(p pool.Pool) error {
		if err := goruntime.Room(); err != nil {
			return err
		}
		block, err := p.Malloc(uint64(size), pool.Stream(stream))
		*address = C.uintptr_t(block.Address)
		return pool.Explain(p, err)
	})
}

//export tmsPoolFree
func tmsPoolFree(handle, address C.uintptr_t) C.int {
	return self.withPool(handle, func(p pool.Pool) error { return p.Free(uintptr(address)) })
}

//export tmsPoolRecordStream
func tmsPoolRecordStream(handle, address, stream C.uintptr_t) C.int {
	return self.withPool(handle, func(p pool.Pool) error {
		recorder, ok := p.(pool.StreamRecorder)
		if !ok {
			return cuda.Refuse(cuda.NotSupported,
				"a pool of this kind ignores streams, and holds nothing back for them; caching does")
		}
		return recorder.RecordStream(uintptr(address), pool.Stream(stream))
	})
}

//export tmsPoolTrim
func tmsPoolTrim(handle C.uintptr_t, released *C.size_t) C.int {
	return self.withPool(handle, func(p pool.Pool) error {
		bytes, err := p.Trim()
		*released = C.size_t(bytes)
		return err
	})
}

//export tmsPoolStats
func tmsPoolStats(handle C.uintptr_t) (text *C.char) {
	self.withPool(handle, func(p pool.Pool) (err error) {
		text, err = marshalled(p.Stats())
		return err
	})
	return text
}

//export tmsPoolSnapshot
func tmsPoolSnapshot(handle C.uintptr_t) (text *C.char) {
	self.withPool(handle, func(p pool.Pool) (err error) {
		text, err = marshalled(p.Snapshot())
		return err
	})
	return text
}

//export tmsPoolResetPeakStats
func tmsPoolResetPeakStats(handle C.uintptr_t) C.int {
	return self.withPool(handle, func(p pool.Pool) error {
		p.ResetPeakStats()
		return nil
	})
}

//export tmsPoolDestroy
func tmsPoolDestroy(handle C.uintptr_t) C.int {
	return report(self.enter(func(*vmm.Engine) error { return self.pools.handles.Destroy(uintptr(handle)) }))
}
