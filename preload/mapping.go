package main

/*
#include "shim.h"
#include "region.h"
*/
import "C"

import (
	"errors"
	"unsafe"

	"tms/vmm"
	"tms/vmm/cuda"
)

// reportMapping is report, and NOT_OURS where the driver is to be called.
func reportMapping(err error) C.int {
	if errors.Is(err, vmm.ErrNotOurs) {
		return C.NOT_OURS
	}
	return report(err)
}

//export tmsMemCreate
func tmsMemCreate(handle *C.uint64_t, size C.size_t, prop unsafe.Pointer, device C.int, settings *C.struct_region_settings) C.int {
	return report(enter(func(e *vmm.Engine) error {
		request, err := newRequest(device, settings)
		if err != nil {
			return err
		}
		request.Size = uint64(size)
		made, err := e.MemCreate(request, *(*cuda.AllocationProp)(prop))
		*handle = C.uint64_t(made)
		return err
	}))
}

//export tmsMemRelease
func tmsMemRelease(handle C.uint64_t) C.int {
	return reportMapping(enter(func(e *vmm.Engine) error { return e.MemRelease(cuda.Handle(handle)) }))
}

//export tmsMemMap
func tmsMemMap(address C.uintptr_t, size, offset C.size_t, handle C.uint64_t, flags C.ulonglong) C.int {
	return reportMapping(enter(func(e *vmm.Engine) error {
		err := e.MemMap(uintptr(address), uint64(size), uint64(offset), cuda.Handle(handle), uint64(flags))
		if err == nil && bool(C.trace_is_on()) {
			if mapped, ok := e.MappedAt(uintptr(address)); ok {
				recordAllocation(mapped, false)
			}
		}
		return err
	}))
}

//export tmsMemUnmap
func tmsMemUnmap(address C.uintptr_t, size C.size_t) C.int {
	return reportMapping(enter(func(e *vmm.Engine) error {
		C.trace_unmapped(address, size) // before others can have the addresses; what is not known there is none
		return e.MemUnmap(uintptr(address), uint64(size))
	}))
}

//export tmsMemSetAccess
func tmsMemSetAccess(address C.uintptr_t, size C.size_t, access unsafe.Pointer, count C.size_t) C.int {
	return reportMapping(enter(func(e *vmm.Engine) error {
		var descs []cuda.AccessDesc
		if access != nil {
			descs = append(descs, unsafe.Slice((*cuda.AccessDesc)(access), int(count))...)
		}
		return e.MemSetAccess(uintptr(address), uint64(size), descs)
	}))
}

//export tmsMemAddressFree
func tmsMemAddressFree(address C.uintptr_t, size C.size_t) C.int {
	return reportMapping(enter(func(e *vmm.Engine) error { return e.MemAddressFree(uintptr(address), uint64(size)) }))
}

//export tmsMemRetain
func tmsMemRetain(handle *C.uint64_t, address C.uintptr_t) C.int {
	return reportMapping(enter(func(e *vmm.Engine) error {
		number, err := e.MemRetain(uintptr(address))
		if err == nil {
			*handle = C.uint64_t(number)
		}
		return err
	}))
}

// tmsMemUse has mapping_use called with the driver's handle.
//
//export tmsMemUse
func tmsMemUse(handle C.uint64_t, lend C.bool, use *C.struct_mapping_use) C.int {
	return reportMapping(enter(func(e *vmm.Engine) error {
		return e.MemUse(cuda.Handle(handle), bool(lend), func(real cuda.Handle) error {
			if code := C.mapping_use(use, C.uint64_t(real)); code != 0 {
				return cuda.Result(code)
			}
			return nil
		})
	}))
}
