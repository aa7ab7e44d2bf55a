package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"

	"tms/internal/failpoint"
	"tms/vmm/reclaim"
)

type function int

const (
	fnInit function = iota
	fnDriverGetVersion
	fnGetErrorName
	fnGetErrorString
	fnDeviceGet
	fnDeviceGetCount
	fnDeviceGetAttribute
	fnDeviceTotalMem
	fnDeviceCanAccessPeer
	fnDevicePrimaryCtxRetain
	fnDevicePrimaryCtxGetState
	fnDevicePrimaryCtxRelease
	fnCtxGetCurrent
	fnCtxSetCurrent
	fnCtxPushCurrent
	fnCtxPopCurrent
	fnCtxGetDevice
	fnCtxSynchronize
	fnThreadExchangeStreamCaptureMode
	fnMemGetInfo
	fnMemAlloc
	fnMemFree
	fnMemAddressReserve
	fnMemAddressFree
	fnMemGetAllocationGranularity
	fnMemCreate
	fnMemRelease
	fnMemMap
	fnMemUnmap
	fnMemSetAccess
	fnMemHostRegister
	fnMemHostUnregister
	fnMemHostGetDevicePointer
	fnMemcpyDtoHAsync
	fnMemcpyHtoDAsync
	fnMemcpyDtoDAsync
	fnStreamCreate
	fnStreamSynchronize
	fnStreamDestroy
	fnStreamGetCtx
	fnEventCreate
	fnEventRecord
	fnEventQuery
	fnEventSynchronize
	fnEventDestroy
	fnLibraryLoadData
	fnLibraryGetKernel
	fnKernelGetFunction
	fnLaunchKernel
	fnMemsetD32Async
	functions
)

// A driver may lack the functions from here on: calling one is then an error that is NotSupported.
const firstOptional = fnLibraryLoadData

// Names as libcuda exports them: cuda.h maps the plain name to the versioned one.
var names = [functions]string{
	fnInit:                            "cuInit",
	fnDriverGetVersion:                "cuDriverGetVersion",
	fnGetErrorName:                    "cuGetErrorName",
	fnGetErrorString:                  "cuGetErrorString",
	fnDeviceGet:                       "cuDeviceGet",
	fnDeviceGetCount:                  "cuDeviceGetCount",
	fnDeviceGetAttribute:              "cuDeviceGetAttribute",
	fnDeviceTotalMem:                  "cuDeviceTotalMem_v2",
	fnDeviceCanAccessPeer:             "cuDeviceCanAccessPeer",
	fnDevicePrimaryCtxRetain:          "cuDevicePrimaryCtxRetain",
	fnDevicePrimaryCtxGetState:        "cuDevicePrimaryCtxGetState",
	fnDevicePrimaryCtxRelease:         "cuDevicePrimaryCtxRelease_v2",
	fnCtxGetCurrent:                   "cuCtxGetCurrent",
	fnCtxSetCurrent:                   "cuCtxSetCurrent",
	fnCtxPushCurrent:                  "cuCtxPushCurrent_v2",
	fnCtxPopCurrent:                   "cuCtxPopCurrent_v2",
	fnCtxGetDevice:                    "cuCtxGetDevice",
	fnCtxSynchronize:                  "cuCtxSynchronize",
	fnThreadExchangeStreamCaptureMode: "cuThreadExchangeStreamCaptureMode",
	fnMemGetInfo:                      "cuMemGetInfo_v2",
	fnMemAlloc:                        "cuMemAlloc_v2",
	fnMemFree:                         "cuMemFree_v2",
	fnMemAddressReserve:               "cuMemAddressReserve",
	fnMemAddressFree:                  "cuMemAddressFree",
	fnMemGetAllocationGranularity:     "cuMemGetAllocationGranularity",
	fnMemCreate:                       "cuMemCreate",
	fnMemRelease:                      "cuMemRelease",
	fnMemMap:                          "cuMemMap",
	fnMemUnmap:                        "cuMemUnmap",
	fnMemSetAccess:                    "cuMemSetAccess",
	fnMemHostRegister:                 "cuMemHostRegister_v2",
	fnMemHostUnregister:               "cuMemHostUnregister",
	fnMemHostGetDevicePointer:         "cuMemHostGetDevicePointer_v2",
	fnMemcpyDtoHAsync:                 "cuMemcpyDtoHAsync_v2",
	fnMemcpyHtoDAsync:                 "cuMemcpyHtoDAsync_v2",
	fnMemcpyDtoDAsync:                 "cuMemcpyDtoDAsync_v2",
	fnStreamCreate:                    "cuStreamCreate",
	fnStreamSynchronize:               "cuStreamSynchronize",
	fnStreamDestroy:                   "cuStreamDestroy_v2",
	fnStreamGetCtx:                    "cuStreamGetCtx",
	fnEventCreate:                     "cuEventCreate",
	fnEventRecord:                     "cuEventRecord",
	fnEventQuery:                      "cuEventQuery",
	fnEventSynchronize:                "cuEventSynchronize",
	fnEventDestroy:                    "cuEventDestroy_v2",
	fnLibraryLoadData:                 "cuLibraryLoadData",
	fnLibraryGetKernel:                "cuLibraryGetKernel",
	fnKernelGetFunction:               "cuKernelGetFunction",
	fnLaunchKernel:                    "cuLaunchKernel",
	fnMemsetD32Async:                  "cuMemsetD32Async",
}

// Driver is a loaded and initialised CUDA driver.
type Driver struct {
	// Reclaim is what is to be given back yet, or has been refused: by the driver, or by the system where it holds
	// what the driver had to do with.
	Reclaim reclaim.Queue

	address [functions]uintptr
}

// Open loads the driver library at path (the loader searches for a bare name such as
// "libcuda.so.1"), binds its functions and calls cuInit(0).
func Open(path string) (*Driver, error) {
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("the CUDA driver cannot be loaded: %w", err)
	}
	d := &Driver{}
	for f, name := range names {
		if d.address[f], err = purego.Dlsym(library, name); err != nil && function(f) < firstOptional {
			return nil, fmt.Errorf("the CUDA driver is too old (it has no %s; 11.2 or newer is needed): %w", name, err)
		}
	}
	if err := d.call(fnInit, 0); err != nil {
		return nil, err
	}
	return d, nil
}

// call makes one driver call. The pragma keeps what the arguments point to alive and in place.
//
//go:uintptrescapes
func (d *Driver) call(f function, arguments ...uintptr) error {
	if d.address[f] == 0 {
		return d.newError(f, NotSupported)
	}
	if err := failpoint.Err(names[f]); err != nil {
		result := Unknown
		errors.As(err, &result)
		return d.newError(f, result)
	}
	result, _, _ := purego.SyscallN(d.address[f], arguments...)
	if Result(result) == Success {
		return nil
	}
	return d.newError(f, Result(result))
}

func (d *Driver) newError(f function, r Result) error {
	return &Error{
		Call:   names[f],
		Result: r,
		Name:   d.errorText(fnGetErrorName, r),
		Text:   d.errorText(fnGetErrorString, r),
	}
}

func (d *Driver) errorText(f function, r Result) string {
	var text *byte
	code, _, _ := purego.SyscallN(d.address[f], uintptr(r), uintptr(unsafe.Pointer(&text)))
	if Result(code) != Success || text == nil {
		return "unknown error"
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(text), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(text, n))
}

// Version is the CUDA version the driver supports: 1000 x major + 10 x minor.
func (d *Driver) Version() (int, error) {
	var version int32
	err := d.call(fnDriverGetVersion, uintptr(unsafe.Pointer(&version)))
	return int(version), err
}
