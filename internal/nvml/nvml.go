// Package nvml asks NVIDIA's management library (libnvidia-ml.so.1, which comes with the driver) what is on each
// device: it alone knows what processes without libtms.so hold, and everything that any process holds. It makes no
// context, so its caller holds no device memory. The caller tells processes apart.
package nvml

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
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
	insufficientSize = 7          // NVML_ERROR_INSUFFICIENT_SIZE
	notAvailable     = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE
	textLength       = 96         // of any name and UUID
	fewProcesses     = 8          // room for so many at first, and for so many more that appear meanwhile
)

// Library is NVML, loaded and initialised. Several goroutines may use it.
type Library struct {
	initialize  func() int32
	shutdown    func() int32
	errorString func(int32) string
	count       func(*uint32) int32
	handle      func(uint32, *uintptr) int32
	uuid, name  func(uintptr, *byte, uint32) int32
	oldMemory   func(uintptr, *oldMemoryInfo) int32
	memory      func(uintptr, *memoryInfo) int32 // nil before driver 510
	processes   func(uintptr, *uint32, *processInfo) int32
}

// The functions. nvmlGetProcesses is the version whose layout no driver has changed: in some drivers 535, _v3 has a
// longer record.
const (
	nvmlInit         = "nvmlInit_v2"
	nvmlShutdown     = "nvmlShutdown"
	nvmlErrorString  = "nvmlErrorString"
	nvmlGetCount     = "nvmlDeviceGetCount_v2"
	nvmlGetHandle    = "nvmlDeviceGetHandleByIndex_v2"
	nvmlGetUUID      = "nvmlDeviceGetUUID"
	nvmlGetName      = "nvmlDeviceGetName"
	nvmlGetOldMemory = "nvmlDeviceGetMemoryInfo"
	nvmlGetMemory    = "nvmlDeviceGetMemoryInfo_v2"
	nvmlGetProcesses = "nvmlDeviceGetComputeRunningProcesses_v2"
)

// Open loads NVML and initialises it; that can take a second where no process uses a device. (nvmlInit_v2) Errors:
// ErrUnavailable, wrapped; NVML's own.
func Open() (*Library, error) {
	runtime.LockOSThread() // the loader keeps its error text per thread
	defer runtime.UnlockOSThread()
	loaded, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var l Library
	for name, function := range map[string]any{nvmlInit: &l.initialize, nvmlShutdown: &l.shutdown,
		nvmlErrorString: &l.errorString, nvmlGetCount: &l.count, nvmlGetHandle: &l.handle, nvmlGetUUID: &l.uuid,
		nvmlGetName: &l.name, nvmlGetOldMemory: &l.oldMemory, nvmlGetMemory: &l.memory,
		nvmlGetProcesses: &l.processes} {
		address, err := purego.Dlsym(loaded, name)
		switch {
		case err == nil:
			purego.RegisterFunc(function, address)
		case name != nvmlGetMemory:
			return nil, fmt.Errorf("%w: the one that is here has no %s: 11.2 or newer is needed", ErrUnavailable, name)
		}
	}
	if err := l.failure(nvmlInit, l.initialize()); err != nil {
		return nil, err
	}
	return &l, nil
}

// Close gives back what Open took, such as descriptors; the library stays loaded. (nvmlShutdown)
func (l *Library) Close() { l.shutdown() }

// Devices lists all that this process may see, whatever CUDA_VISIBLE_DEVICES says. It leaves out a device that does not
// answer. Errors: NVML's, joined, also where a device does not tell its processes.
func (l *Library) Devices() ([]Device, error) {
	var count uint32
	if err := l.failure(nvmlGetCount, l.count(&count)); err != nil {
		return nil, err
	}
	var found []Device
	var failed []error
	for index := range int(count) {
		device := Device{Index: index}
		handle, err := l.describe(&device)
		if err == nil {
			device.Processes, err = l.list(handle)
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
	if err = l.failure(nvmlGetHandle, l.handle(uint32(d.Index), &handle)); err != nil {
		return handle, err
	}
	var uuid, name [textLength]byte
	if err = l.failure(nvmlGetUUID, l.uuid(handle, &uuid[0], textLength)); err != nil {
		return handle, err
	}
	if err = l.failure(nvmlGetName, l.name(handle, &name[0], textLength)); err != nil {
		return handle, err
	}
	d.UUID, d.Name = text(uuid), text(name)
	if l.memory == nil {
		var info oldMemoryInfo
		err = l.failure(nvmlGetOldMemory, l.oldMemory(handle, &info))
		d.TotalBytes, d.FreeBytes, d.UsedBytes = info.total, info.free, info.used
		return handle, err
	}
	info := memoryInfo{version: uint32(unsafe.Sizeof(memoryInfo{})) | 2<<24}
	err = l.failure(nvmlGetMemory, l.memory(handle, &info))
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
		result := l.processes(handle, &count, &list[0])
		if result == insufficientSize {
			room = max(count, room) + fewProcesses
			continue
		}
		if err := l.failure(nvmlGetProcesses, result); err != nil {
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

func (l *Library) failure(call string, result int32) error {
	if result == 0 {
		return nil
	}
	return fmt.Errorf("%s: NVML error %d: %s", call, result, l.errorString(result)) // an nvmlReturn_t
}
