package main

// #include "shim.h"
import "C"

import (
	"errors"
	"unsafe"

	"tms/preload/goruntime"
	"tms/preload/watch"
	"tms/vmm"
	"tms/vmm/cuda"
)

// reportMapping is report, but NOT_OURS where the driver is to be called, and MEMORY_IS_PAUSED.
func reportMapping(err error) C.int {
	if errors.Is(err, vmm.ErrNotOurs) {
		return C.NOT_OURS
	}
	code := report(err)
	if errors.Is(err, vmm.ErrMemoryPaused) {
		return C.MEMORY_IS_PAUSED
	}
	return code
}

//export tmsMemCreate
func tmsMemCreate(handle *C.uint64_t, size C.size_t, prop unsafe.Pointer, device C.int,
	settings *C.struct_region_settings) C.int {
	return reportAllocation(self.enter(func(e *vmm.Engine) error {
		request, err := newRequest(device, settings)
		if err != nil {
			return err
		}
		request.Size = uint64(size)
		made, err := e.UserMapped().Create(request, *(*cuda.AllocationProp)(prop))
		*handle = C.uint64_t(made)
		return err
	}))
}

//export tmsMemRelease
func tmsMemRelease(handle C.uint64_t) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error { return e.UserMapped().Release(cuda.Handle(handle)) }))
}

//export tmsMemMap
func tmsMemMap(address C.uintptr_t, size, offset C.size_t, handle C.uint64_t, flags C.ulonglong) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		err := e.UserMapped().Map(uintptr(address), uint64(size), uint64(offset), cuda.Handle(handle), uint64(flags))
		if err == nil && bool(C.watch_is_on(C.WATCH_RECORDS)) {
			if mapped, ok := e.UserMapped().At(uintptr(address)); ok {
				watch.Existing(mapped, false)
			}
		}
		return err
	}))
}

//export tmsMemUnmap
func tmsMemUnmap(address C.uintptr_t, size C.size_t) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		C.recording_unmapped(address, size) // before others can get the addresses; readers ignore unknown ones
		return e.UserMapped().Unmap(uintptr(address), uint64(size))
	}))
}

//export tmsMemSetAccess
func tmsMemSetAccess(address C.uintptr_t, size C.size_t, access unsafe.Pointer, count C.size_t) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		var descs []cuda.AccessDesc
		if access != nil {
			descs = append(descs, unsafe.Slice((*cuda.AccessDesc)(access), int(count))...)
		}
		return e.UserMapped().SetAccess(uintptr(address), uint64(size), descs)
	}))
}

//export tmsMemAddressFree
func tmsMemAddressFree(address C.uintptr_t, size C.size_t) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		return e.UserMapped().AddressFree(uintptr(address), uint64(size))
	}))
}

//export tmsMemRetain
func tmsMemRetain(handle *C.uint64_t, address C.uintptr_t) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		number, err := e.UserMapped().Retain(uintptr(address))
		if err == nil {
			*handle = C.uint64_t(number)
		}
		return err
	}))
}

// tmsMemUse calls mapping_use. Of paused memory it answers for the driver what the memory's properties are.
//
//export tmsMemUse
func tmsMemUse(handle C.uint64_t, exports C.bool, use *C.struct_mapping_use) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		err := e.UserMapped().Use(cuda.Handle(handle), bool(exports), func(real cuda.Handle) error {
			if code := C.mapping_use(use, C.uint64_t(real)); code != 0 {
				return cuda.Result(code)
			}
			return nil
		})
		if errors.Is(err, vmm.ErrMemoryPaused) && use._type == 0 && use.out != nil {
			*(*cuda.AllocationProp)(use.out), err = e.UserMapped().PropOf(cuda.Handle(handle))
		}
		return err
	}))
}

// tmsMemExported notes memory that the driver has exported, by its handle, or by an address range.
//
//export tmsMemExported
func tmsMemExported(handle C.uint64_t, address C.uintptr_t, size C.size_t) {
	self.onEngine(func(e *vmm.Engine) {
		e.Shared().NoteExport(cuda.Handle(handle), uintptr(address), uint64(size))
	})
}

// tmsMemPin replaces a handle of this library by the driver's, for a multicast object.
//
//export tmsMemPin
func tmsMemPin(handle *C.uint64_t) C.int {
	return reportMapping(self.enter(func(e *vmm.Engine) error {
		theirs, err := e.UserMapped().Pin(cuda.Handle(*handle))
		if err != nil {
			return err
		}
		*handle = C.uint64_t(theirs)
		return nil
	}))
}

//export tmsMemBound
func tmsMemBound(handle C.uint64_t, worked C.bool) {
	self.onEngine(func(e *vmm.Engine) {
		if !worked {
			e.UserMapped().Unpin(cuda.Handle(handle))
		} else if !self.multicastNoted.Swap(true) {
			goruntime.Log("memory of a region is bound to a multicast object, so pauses leave it as it is; PyTorch's " +
				"symmetric memory does without with TORCH_SYMM_MEM_DISABLE_MULTICAST=1")
		}
	})
}
