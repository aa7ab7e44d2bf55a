package main

// #include "shim.h"
import "C"

import "tms/vmm"

// tmsHas returns how many bytes of a device count for the program's limit.
//
//export tmsHas
func tmsHas(device C.int) (bytes C.uint64_t) {
	_ = self.enter(func(e *vmm.Engine) error {
		bytes = C.uint64_t(e.Records().Has(int(device)))
		return nil
	})
	return bytes
}

// tmsHasBy is tmsHas by NVML's UUID.
//
//export tmsHasBy
func tmsHasBy(uuid *C.char) (bytes C.uint64_t) {
	_ = self.enter(func(e *vmm.Engine) error {
		bytes = C.uint64_t(e.Records().HasBy(C.GoString(uuid)))
		return nil
	})
	return bytes
}
