package main

// #include "shim.h"
import "C"

import (
	"tms/preload/goruntime"
	"tms/vmm"
)

// tmsHas returns how many bytes of a device count for the program's limit.
//
//export tmsHas
func tmsHas(device C.int) (bytes C.uint64_t) {
	self.onEngine(func(e *vmm.Engine) { bytes = C.uint64_t(e.Records().Has(int(device))) })
	return bytes
}

// tmsUUID fills in a device's UUID. NOT_OURS: the driver does not tell it.
//
//export tmsUUID
func tmsUUID(device C.int, uuid *C.char, room C.size_t) C.int {
	code := C.int(C.NOT_OURS)
	_ = goruntime.Run(func() error {
		if found := self.uuidOf(int(device)); found != "" {
			fillTag(uuid, room, found)
			code = C.SUCCESS
		}
		return nil
	})
	return code
}

// tmsHasBy is tmsHas by NVML's UUID.
//
//export tmsHasBy
func tmsHasBy(uuid *C.char) (bytes C.uint64_t) {
	self.onEngine(func(e *vmm.Engine) { bytes = C.uint64_t(e.Records().HasBy(C.GoString(uuid))) })
	return bytes
}
