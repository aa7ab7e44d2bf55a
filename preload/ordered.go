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
	_ = self.enter(func(e *vmm.Engine) error {
		e.FreeContext(cuda.Context(uintptr(context)), state().Capturing)
		return nil
	})
}

// tmsOrderedBytes fills in what a device's pools have: reserved and the most that was, used and the most that was.
//
//export tmsOrderedBytes
func tmsOrderedBytes(device C.int, bytes *C.uint64_t) {
	_ = self.enter(func(e *vmm.Engine) error {
		of := e.Ordered().Bytes(int(device))
		for i, value := range of {
			unsafe.Slice(bytes, len(of))[i] = C.uint64_t(value)
		}
		return nil
	})
}

//export tmsOrderedResetHigh
func tmsOrderedResetHigh(device C.int, used C.bool) {
	_ = self.enter(func(e *vmm.Engine) error {
		e.Ordered().ResetHigh(int(device), bool(used))
		return nil
	})
}

//export tmsOrderedSettle
func tmsOrderedSettle() {
	_ = self.enter(func(e *vmm.Engine) error {
		e.Ordered().Settle()
		return nil
	})
}

//export tmsOrderedTrim
func tmsOrderedTrim(device C.int, least C.size_t) {
	_ = self.enter(func(e *vmm.Engine) error {
		e.Ordered().Trim(int(device), uint64(least))
		return nil
	})
}
