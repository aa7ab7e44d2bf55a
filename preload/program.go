package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool/lifetime"
	"tms/vmm/pool/program"
	"tms/vmm/pool/torch"
)

func (p *Process) newProgramPools(e *vmm.Engine) *program.Pools {
	if C.region_config.pool == nil {
		return nil
	}
	setting := C.GoString(C.region_config.pool)
	kind, options, _ := strings.Cut(setting, ":")
	source := func(m torch.Memory) (lifetime.Source, error) { return p.newSource(e, m) }
	made, err := program.New(kind, options, e, source, func() bool { return state().Capturing })
	if err != nil {
		goruntime.Log(fmt.Sprintf("TMS_INIT_POOL=%s is not understood: %v; no pool is used", setting, err))
		return nil
	}
	return made
}

// poolMalloc is tmsMalloc from the pool for what the settings ask for.
func (p *Process) poolMalloc(e *vmm.Engine, address *unsafe.Pointer, size C.size_t, device C.int,
	context unsafe.Pointer, settings *C.struct_region_settings) error {
	memory, err := memoryOf(device, settings)
	if err != nil {
		return err
	}
	if err := e.Admit(int(device), cuda.Context(uintptr(context))); err != nil {
		return err
	}
	made, err := p.pools.program.Malloc(memory, uint64(size))
	*(*uintptr)(unsafe.Pointer(address)) = made
	return err
}
