// Package nvml asks NVIDIA's management library (libnvidia-ml.so.1, which comes with the driver) what is on each
// device: it alone knows what processes without libtms.so hold, and everything that any process holds. It makes no
// context, so its caller holds no device memory. The caller tells processes apart.
package nvml

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// Device is a GPU. Sizes are in bytes. (nvmlDeviceGetMemoryInfo_v2; before driver 510, reserved memory counts as used)
type Device struct {
	Index      int    // NVML's, by PCI bus: not always the ordinal that a process has for it
	UUID       string // as of stats.Device
	Name       string
	TotalBytes uint64
	UsedBytes  uint64
	FreeBytes  uint64
	Processes  []Process // those that use CUDA on it, in NVML's order
}

// Process is what one process has on one device. (nvmlDeviceGetComputeRunningProcesses_v2)
type Process struct {
	// PID is its number as the driver knows it: in a container with its own PID namespace, that may be another
	// process's number.
	PID int
	// UsedBytes is everything that it has there, including contexts, code and local memory.
	UsedBytes uint64
	// Known is false where NVML has no figure for it; UsedBytes is then 0.
	Known bool
}

// ErrUnavailable says that there is no NVML to ask.
var ErrUnavailable = errors.New("NVML, which comes with NVIDIA's driver, is not available")

// memoryInfo is an nvmlMemory_v2_t, oldMemoryInfo an nvmlMemory_t.
type (
	memoryInfo struct {
		version              uint32
		total, _, free, used uint64 // between them: the driver's and the firmware's own
	}
	oldMemoryInfo struct{ total, free, used uint64 }
)

// processInfo is an nvmlProcessInfo_v2_t.
type processInfo struct {
	pid  uint32
	used uint64
	_, _ uint32 // the part of a GPU
}

const (
	insufficientSize = result(7)  // NVML_ERROR_INSUFFICIENT_SIZE
	notAvailable     = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE
	textLength       = 96         // of any name and UUID
	fewProcesses     = 8          // room at first, and room for more that appear between two calls
)

// Library is NVML, loaded and initialised. Several goroutines may use it.
type Library struct {
	address map[string]uintptr // of the functions that it has, by name
}

// required are the functions that are called. For processes it is the version whose layout no driver has changed: in
// some drivers 535, _v3 has a longer record.
var required = strings.Fields(`
	nvmlInit_v2 nvmlShutdown nvmlErrorString nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetUUID
	nvmlDeviceGetName nvmlDeviceGetMemoryInfo nvmlDeviceGetComputeRunningProcesses_v2 nvmlSystemGetDriverVersion
`)

const newerMemoryInfo = "nvmlDeviceGetMemoryInfo_v2" // since driver 510

// Open loads NVML and initialises it; that can take a second where no process uses a device. (nvmlInit_v2) Errors:
// ErrUnavailable, wrapped; NVML's own.
func Open() (*Library, error) {
	runtime.LockOSThread() // the loader keeps its error text per thread
	defer runtime.UnlockOSThread()
	loaded, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	l := &Library{map[string]uintptr{}}
	l.address[newerMemoryInfo], _ = purego.Dlsym(loaded, newerMemoryInfo)
	for _, name := range required {
		if l.address[name], err = purego.Dlsym(loaded, name); err != nil {
			return nil, fmt.Errorf("%w: the one that is here has no %s: 11.2 or newer is needed", ErrUnavailable, name)
		}
	}
	return l, l.call("nvmlInit_v2")
}

// Close gives back what Open took, such as descriptors; the library stays loaded. (nvmlShutdown)
func (l *Library) Close() { _ = l.call("nvmlShutdown") }

// DriverVersion returns the version of the driver, such as "580.159.04". (nvmlSystemGetDriverVersion)
func (l *Library) DriverVersion() (string, error) {
	var version [textLength]byte
	err := l.call("nvmlSystemGetDriverVersion", uintptr(unsafe.Pointer(&version[0])), textLength)
	return text(version), err
}

// Devices lists all that this process may see, whatever CUDA_VISIBLE_DEVICES says. It leaves out a device that does not
// answer. Errors: NVML's, joined, also where a device does not tell its processes.
func (l *Library) Devices() ([]Device, error) { return l.look(l.list) }

// Memory is Devices without the processes, for a caller that must be quick.
func (l *Library) Memory() ([]Device, error) {
	return l.look(func(uintptr) ([]Process, error) { return nil, nil })
}

func (l *Library) look(list func(handle uintptr) ([]Process, error)) ([]Device, error) {
	var count uint32
	if err := l.call("nvmlDeviceGetCount_v2", uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	var found []Device
	var failed []error
	for index := range int(count) {
		device := Device{Index: index}
		handle, err := l.describe(&device)
		if err == nil {
			device.Processes, err = list(handle)
			found = append(found, device)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("device %d: %w", index, err))
		}
	}
	return found, errors.Join(failed...)
}

// describe finds out everything except the processes.
func (l *Library) describe(d *Device) (handle uintptr, err error) {
	err = l.call("nvmlDeviceGetHandleByIndex_v2", uintptr(d.Index), uintptr(unsafe.Pointer(&handle)))
	if err != nil {
		return handle, err
	}
	var uuid, name [textLength]byte
	if err = l.call("nvmlDeviceGetUUID", handle, uintptr(unsafe.Pointer(&uuid[0])), textLength); err != nil {
		return handle, err
	}
	if err = l.call("nvmlDeviceGetName", handle, uintptr(unsafe.Pointer(&name[0])), textLength); err != nil {
		return handle, err
	}
	d.UUID, d.Name = text(uuid), text(name)
	if l.address[newerMemoryInfo] == 0 {
		var info oldMemoryInfo
		err = l.call("nvmlDeviceGetMemoryInfo", handle, uintptr(unsafe.Pointer(&info)))
		d.TotalBytes, d.FreeBytes, d.UsedBytes = info.total, info.free, info.used
		return handle, err
	}
	info := memoryInfo{version: uint32(unsafe.Sizeof(memoryInfo{})) | 2<<24}
	err = l.call(newerMemoryInfo, handle, uintptr(unsafe.Pointer(&info)))
	d.TotalBytes, d.FreeBytes, d.UsedBytes = info.total, info.free, info.used
	return handle, err
}

func text(buffer [textLength]byte) string {
	text, _, _ := bytes.Cut(buffer[:], []byte{0})
	return string(text)
}

func (l *Library) list(handle uintptr) ([]Process, error) {
	for room := uint32(fewProcesses); ; {
		count, list := room, make([]processInfo, room)
		err := l.call("nvmlDeviceGetComputeRunningProcesses_v2", handle, uintptr(unsafe.Pointer(&count)),
			uintptr(unsafe.Pointer(&list[0])))
		if errors.Is(err, insufficientSize) {
			room = max(count, room) + fewProcesses
			continue
		}
		if err != nil {
			return nil, err
		}
		found := make([]Process, count)
		for i, p := range list[:count] {
			found[i].PID = int(p.pid)
			if p.used != notAvailable {
				found[i].UsedBytes, found[i].Known = p.used, true
			}
		}
		return found, nil
	}
}

// result is an nvmlReturn_t.
type result int32

func (r result) Error() string { return fmt.Sprintf("NVML error %d", int32(r)) }

// call calls a function that returns an nvmlReturn_t. Errors: a result, wrapped, unless that is 0.
//
//go:uintptrescapes
func (l *Library) call(name string, arguments ...uintptr) error {
	code, _, _ := purego.SyscallN(l.address[name], arguments...)
	if result(code) == 0 {
		return nil
	}
	words, _, _ := purego.SyscallN(l.address["nvmlErrorString"], code)
	return fmt.Errorf("%s: %w: %s", name, result(code), unix.BytePtrToString(*(**byte)(unsafe.Pointer(&words))))
}
