package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"tms/internal/failpoint"
	"tms/vmm/reclaim"
)

// function is a function of the driver: its index in names.
type function int

// names are those that libcuda exports: cuda.h maps the plain name to the versioned one.
var names []string

func named(name string) function {
	names = append(names, name)
	return function(len(names) - 1)
}

var (
	fnInit                            = named("cuInit")
	fnDriverGetVersion                = named("cuDriverGetVersion")
	fnGetErrorString                  = named("cuGetErrorString")
	fnDeviceGet                       = named("cuDeviceGet")
	fnDeviceGetCount                  = named("cuDeviceGetCount")
	fnDeviceGetAttribute              = named("cuDeviceGetAttribute")
	fnDeviceGetName                   = named("cuDeviceGetName")
	fnDeviceTotalMem                  = named("cuDeviceTotalMem_v2")
	fnDeviceCanAccessPeer             = named("cuDeviceCanAccessPeer")
	fnDevicePrimaryCtxRetain          = named("cuDevicePrimaryCtxRetain")
	fnDevicePrimaryCtxGetState        = named("cuDevicePrimaryCtxGetState")
	fnDevicePrimaryCtxRelease         = named("cuDevicePrimaryCtxRelease_v2")
	fnCtxGetCurrent                   = named("cuCtxGetCurrent")
	fnCtxSetCurrent                   = named("cuCtxSetCurrent")
	fnCtxPushCurrent                  = named("cuCtxPushCurrent_v2")
	fnCtxPopCurrent                   = named("cuCtxPopCurrent_v2")
	fnCtxGetDevice                    = named("cuCtxGetDevice")
	fnCtxSynchronize                  = named("cuCtxSynchronize")
	fnThreadExchangeStreamCaptureMode = named("cuThreadExchangeStreamCaptureMode")
	fnMemGetInfo                      = named("cuMemGetInfo_v2")
	fnMemAlloc                        = named("cuMemAlloc_v2")
	fnMemFree                         = named("cuMemFree_v2")
	fnMemAddressReserve               = named("cuMemAddressReserve")
	fnMemAddressFree                  = named("cuMemAddressFree")
	fnMemGetAllocationGranularity     = named("cuMemGetAllocationGranularity")
	fnMemCreate                       = named("cuMemCreate")
	fnMemRelease                      = named("cuMemRelease")
	fnMemMap                          = named("cuMemMap")
	fnMemUnmap                        = named("cuMemUnmap")
	fnMemSetAccess                    = named("cuMemSetAccess")
	fnMemHostAlloc                    = named("cuMemHostAlloc")
	fnMemFreeHost                     = named("cuMemFreeHost")
	fnMemHostRegister                 = named("cuMemHostRegister_v2")
	fnMemHostUnregister               = named("cuMemHostUnregister")
	fnMemHostGetDevicePointer         = named("cuMemHostGetDevicePointer_v2")
	fnMemcpyDtoHAsync                 = named("cuMemcpyDtoHAsync_v2")
	fnMemcpyHtoDAsync                 = named("cuMemcpyHtoDAsync_v2")
	fnMemcpyDtoDAsync                 = named("cuMemcpyDtoDAsync_v2")
	fnStreamCreate                    = named("cuStreamCreate")
	fnStreamSynchronize               = named("cuStreamSynchronize")
	fnStreamQuery                     = named("cuStreamQuery")
	fnStreamDestroy                   = named("cuStreamDestroy_v2")
	fnStreamGetCtx                    = named("cuStreamGetCtx")
	fnEventCreate                     = named("cuEventCreate")
	fnEventRecord                     = named("cuEventRecord")
	fnEventQuery                      = named("cuEventQuery")
	fnEventSynchronize                = named("cuEventSynchronize")
	fnEventDestroy                    = named("cuEventDestroy_v2")
)

// A driver may lack the functions from here on: calling one then returns an error that is NotSupported.
var (
	fnLibraryLoadData   = named("cuLibraryLoadData")
	fnLibraryGetKernel  = named("cuLibraryGetKernel")
	fnKernelGetFunction = named("cuKernelGetFunction")
	fnLaunchKernel      = named("cuLaunchKernel")
	fnMemsetD32Async    = named("cuMemsetD32Async")
	fnCtxRecordEvent    = named("cuCtxRecordEvent")
	fnDeviceGetUUID     = named("cuDeviceGetUuid") // not _v2, which for a part of a GPU returns the part's

	fnMemExportToShareableHandle   = named("cuMemExportToShareableHandle")
	fnMemImportFromShareableHandle = named("cuMemImportFromShareableHandle")

	fnDeviceGetDefaultMemPool    = named("cuDeviceGetDefaultMemPool")
	fnMemPoolGetAttribute        = named("cuMemPoolGetAttribute")
	fnDeviceGetGraphMemAttribute = named("cuDeviceGetGraphMemAttribute")

	fnCheckpointProcessGetState   = named("cuCheckpointProcessGetState")
	fnCheckpointProcessLock       = named("cuCheckpointProcessLock")
	fnCheckpointProcessCheckpoint = named("cuCheckpointProcessCheckpoint")
	fnCheckpointProcessRestore    = named("cuCheckpointProcessRestore")
	fnCheckpointProcessUnlock     = named("cuCheckpointProcessUnlock")
)

// Driver is a loaded and initialised CUDA driver.
type Driver struct {
	// Reclaim has what is still to be given back, or was refused: by the driver, or by the system for what the driver
	// uses.
	Reclaim reclaim.Queue

	address []uintptr // by function
}

// Open is Load, and calls cuInit(0). Errors: the driver is too old for the engine.
func Open(path string) (*Driver, error) {
	d, err := Load(path)
	if err != nil {
		return nil, err
	}
	for f, name := range names[:fnLibraryLoadData] {
		if d.address[f] == 0 {
			return nil, fmt.Errorf("the CUDA driver is too old (it has no %s; 11.2 or newer is needed)", name)
		}
	}
	return d, d.Init()
}

// Load loads the driver library at path (the loader searches for a bare name such as "libcuda.so.1") and binds the
// functions that it has.
func Load(path string) (*Driver, error) {
	runtime.LockOSThread() // the loader keeps its error text per thread
	defer runtime.UnlockOSThread()
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("the CUDA driver cannot be loaded: %w", err)
	}
	d := &Driver{address: make([]uintptr, len(names))}
	for f, name := range names {
		d.address[f], _ = purego.Dlsym(library, name)
	}
	return d, nil
}

// Init is cuInit.
func (d *Driver) Init() error { return d.call(fnInit, 0) }

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
	return &Error{Call: names[f], Result: r, Text: d.errorText(r)}
}

func (d *Driver) errorText(r Result) string {
	var text *byte
	code, _, _ := purego.SyscallN(d.address[fnGetErrorString], uintptr(r), uintptr(unsafe.Pointer(&text)))
	if Result(code) != Success || text == nil {
		return "unknown error"
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(text), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(text, n))
}

// Version returns the CUDA version that the driver supports: 1000 x major + 10 x minor.
func (d *Driver) Version() (int, error) {
	var version int32
	err := d.call(fnDriverGetVersion, uintptr(unsafe.Pointer(&version)))
	return int(version), err
}
