package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/vmm/reclaim"
)

// required are the functions that every driver must have, by the names that libcuda exports: cuda.h maps the plain name
// to the versioned one.
var required = strings.Fields(`
	cuInit cuDriverGetVersion cuGetErrorString cuThreadExchangeStreamCaptureMode
	cuDeviceGet cuDeviceGetCount cuDeviceGetAttribute cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceCanAccessPeer
	cuDevicePrimaryCtxRetain cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease_v2
	cuCtxGetCurrent cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxGetDevice cuCtxSynchronize
	cuMemGetInfo_v2 cuMemAddressReserve cuMemAddressFree cuMemGetAllocationGranularity
	cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess
	cuMemHostAlloc cuMemFreeHost cuMemHostRegister_v2 cuMemHostUnregister cuMemHostGetDevicePointer_v2
	cuMemcpyDtoHAsync_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoDAsync_v2
	cuStreamCreate cuStreamSynchronize cuStreamDestroy_v2 cuStreamGetCtx
	cuEventCreate cuEventRecord cuEventQuery cuEventSynchronize cuEventDestroy_v2
`)

// optional are functions that a driver may lack: a call of one then returns an error that is NotSupported.
// cuDeviceGetUuid is not _v2, which for a part of a GPU returns the part's.
var optional = strings.Fields(`
	cuLibraryLoadData cuLibraryGetKernel cuKernelGetFunction cuLaunchKernel cuMemsetD32Async
	cuStreamGetId cuStreamWaitEvent
	cuCtxRecordEvent cuDeviceGetUuid cuMemExportToShareableHandle cuMemImportFromShareableHandle
	cuDeviceGetDefaultMemPool cuMemPoolGetAttribute cuDeviceGetGraphMemAttribute
	cuCheckpointProcessGetState cuCheckpointProcessLock cuCheckpointProcessCheckpoint
	cuCheckpointProcessRestore cuCheckpointProcessUnlock
`)

// Driver is a loaded and initialised CUDA driver.
type Driver struct {
	// Reclaim has what is still to be given back, or was refused: by the driver, or by the system for what the driver
	// uses.
	Reclaim reclaim.Queue

	address map[string]uintptr // of the functions that it has, by name
}

// Open is Load, and calls cuInit(0). Errors: the driver is too old for the engine.
func Open(path string) (*Driver, error) {
	d, err := Load(path)
	if err != nil {
		return nil, err
	}
	return d.open()
}

// OpenLoaded is Open for a driver that is in the process already. find returns the address of a function, or 0; unlike
// the loader's own search, it may need no lock of the loader's.
func OpenLoaded(find func(name string) uintptr) (*Driver, error) { return bind(find).open() }

func (d *Driver) open() (*Driver, error) {
	for _, name := range required {
		if d.address[name] == 0 {
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
	return bind(func(name string) uintptr {
		address, _ := purego.Dlsym(library, name)
		return address
	}), nil
}

func bind(find func(name string) uintptr) *Driver {
	d := &Driver{address: map[string]uintptr{}}
	for _, name := range slices.Concat(required, optional) {
		d.address[name] = find(name)
	}
	return d
}

func (d *Driver) Init() error { return d.call("cuInit", 0) }

// call makes one driver call. The pragma keeps what the arguments point to alive and in place.
//
//go:uintptrescapes
func (d *Driver) call(name string, arguments ...uintptr) error {
	address := d.address[name]
	if address == 0 {
		return d.newError(name, NotSupported)
	}
	if err := failpoint.Err(name); err != nil {
		result := Unknown
		errors.As(err, &result)
		return d.newError(name, result)
	}
	result, _, _ := purego.SyscallN(address, arguments...)
	if Result(result) == Success {
		return nil
	}
	return d.newError(name, Result(result))
}

func (d *Driver) newError(name string, r Result) error {
	return &Error{Call: name, Result: r, Text: d.errorText(r)}
}

func (d *Driver) errorText(r Result) string {
	var text *byte
	code, _, _ := purego.SyscallN(d.address["cuGetErrorString"], uintptr(r), uintptr(unsafe.Pointer(&text)))
	if Result(code) != Success || text == nil {
		return "unknown error"
	}
	return unix.BytePtrToString(text)
}

// Version returns the CUDA version that the driver supports: 1000 x major + 10 x minor.
func (d *Driver) Version() (int, error) {
	var version int32
	err := d.call("cuDriverGetVersion", uintptr(unsafe.Pointer(&version)))
	return int(version), err
}
