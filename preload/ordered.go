package main

// #include "shim.h"
import "C"

import (
	"unsafe"

	"tms/vmm"
	"tms/vmm/cuda"
)

//export tmsDeviceOfContext
func tmsDeviceOfContext(context unsafe.Pointer, device *C.int) C.int {
	return report(self.enter(func(*vmm.Engine) error {
		return self.driver.With(cuda.Context(uintptr(context)), func() error {
			ordinal, err := self.driver.CtxGetDevice()
			*device = C.int(ordinal)
			return err
		})
	}))
}

//export tmsFreeContext
func tmsFreeContext(context unsafe.Pointer) {
	self.onEngine(func(e *vmm.Engine) { e.FreeContext(cuda.Context(uintptr(context)), state().Capturing) })
}

// tmsOrderedBytes fills in what a device's pools have: reserved and the most that was, used and the most that was.
//
//export tmsOrderedBytes
func tmsOrderedBytes(device C.int, bytes *C.uint64_t) {
	self.onEngine(func(e *vmm.Engine) {
		of := e.Ordered().Bytes(int(device))
		for i, value := range of {
			unsafe.Slice(bytes, len(of))[i] = C.uint64_t(value)
		}
	})
}

//export tmsOrderedResetHigh
func tmsOrderedResetHigh(device C.int, used C.bool) {
	self.onEngine(func(e *vmm.Engine) { e.Ordered().ResetHigh(int(device), bool(used)) })
}

//export tmsOrderedSettle
func tmsOrderedSettle() {
	self.onEngine(func(e *vmm.Engine) { e.Ordered().Settle() })
}

//export tmsOrderedTrim
func tmsOrderedTrim(device C.int, least C.size_t) {
	self.onEngine(func(e *vmm.Engine) { e.Ordered().Trim(int(device), uint64(least)) })
}
