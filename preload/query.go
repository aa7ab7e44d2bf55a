package main

// #include "shim.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"tms/vmm"
	"tms/vmm/stats"
)

// tmsMemoryAt fills in what CUDA says of the memory around an address while it is active, and how device may access it.
// It returns NOT_OURS if there is no pausable memory.
//
//export tmsMemoryAt
func tmsMemoryAt(address C.uintptr_t, device C.int, memory *C.struct_memory_at) C.int {
	code := C.int(C.NOT_OURS)
	self.onEngine(func(e *vmm.Engine) {
		m, ok := e.Records().MemoryAt(uintptr(address))
		if !ok {
			return
		}
		code = C.SUCCESS
		*memory = C.struct_memory_at{
			device: C.int(m.Device), base: C.uintptr_t(m.Base), size: C.size_t(m.Size),
			mapping: C.uintptr_t(m.Mapping), mapping_size: C.size_t(m.MappingSize), id: C.uint64_t(m.ID),
			handle_types: C.uint64_t(m.Prop.HandleTypes()), rdma: C.bool(m.Prop.IsForRDMA()),
			access: C.uint64_t(m.Access(int(device))), own: C.bool(m.Own),
			// As tmsShare: of a pool's segment only the whole.
			ipc: C.bool(m.Shareable && (self.pools.program == nil || m.Base == uintptr(address))),
		}
	})
	return code
}

// tmsExposed fills in the tag of the memory at an address, shortened to the room, if it is paused and no gate holds the
// program from it. NOT_OURS: it is not.
//
//export tmsExposed
func tmsExposed(address C.uintptr_t, tag *C.char, room C.size_t) C.int {
	return tagBy(tag, room, func(e *vmm.Engine) (string, bool) { return e.Exposed(uintptr(address)) })
}

func tagBy(tag *C.char, room C.size_t, find func(*vmm.Engine) (string, bool)) C.int {
	code := C.int(C.NOT_OURS)
	self.onEngine(func(e *vmm.Engine) {
		if name, ok := find(e); ok {
			fillTag(tag, room, name)
			code = C.SUCCESS
		}
	})
	return code
}

func fillTag(tag *C.char, room C.size_t, name string) {
	to := unsafe.Slice((*byte)(unsafe.Pointer(tag)), int(room))
	to[copy(to[:room-1], stats.TagText(name))] = 0
}

// exposed has C look for exposed memory in copies, or not.
func exposed(now bool) {
	var checked uint32
	if now {
		checked = 1
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&C.copies_checked)), checked)
}

// tmsPausedTag fills in a tag of which memory is paused, shortened to the room. NOT_OURS: there is none.
//
//export tmsPausedTag
func tmsPausedTag(tag *C.char, room C.size_t) C.int {
	return tagBy(tag, room, func(e *vmm.Engine) (string, bool) { return e.Records().PausedTag() })
}
