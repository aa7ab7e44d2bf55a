package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
	"tms/internal/snapshot/criu"
	"tms/vmm/cuda"
)

// Driver is the CUDA driver that this command finds.
type Driver struct {
	Loaded       bool   `json:"loaded"`
	CUDAVersion  string `json:"cuda_version"`  // the newest CUDA it supports: "13.0"
	KernelModule string `json:"kernel_module"` // "580.95.05", or "" if unknown
	Error        string `json:"error"`

	major int
}

func (d Driver) String() string {
	text := "none"
	if d.Loaded {
		text = "CUDA " + d.CUDAVersion
	}
	if d.KernelModule != "" {
		text += ", kernel module " + d.KernelModule
	}
	return text
}

// Device is one GPU that the driver shows to this command.
type Device struct {
	GPU              *int   `json:"gpu,omitempty"` // NVML's number of it, or nil if NVML does not show it
	UUID             string `json:"uuid"`          // "" if the driver does not report it
	Ordinal          int    `json:"ordinal"`       // the driver's number, for this command
	MemoryBytes      uint64 `json:"memory_bytes"`
	VMM              bool   `json:"vmm"` // virtual memory management, without which nothing can be paused
	GranularityBytes uint64 `json:"granularity_bytes"`
}

func (d Device) String() string {
	text := readable.Short(d.MemoryBytes) + ", no virtual memory management"
	if d.VMM {
		text = fmt.Sprintf("%s, virtual memory management in units of %s", readable.Short(d.MemoryBytes),
			readable.Short(d.GranularityBytes))
	}
	return strings.TrimSpace(text + " " + d.UUID)
}

// examineSnapshots says whether tms snapshot and tms restore work here.
func (r *Report) examineSnapshots() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	program, do, lacks := criu.Able(ctx)
	if lacks != nil {
		r.add(Note, "snapshot", "tms snapshot and tms restore are refused: "+lacks.Error(), do)
		return
	}
	whose := "programs"
	if !criu.AnyUser() {
		whose = "this user's programs, without CAP_SYS_RESOURCE,"
	}
	r.add(OK, "snapshot", "CRIU "+program.Version+" can dump and restore "+whose+" on Linux "+criu.Kernel(), "")
}

func (r *Report) examineDriver() {
	r.Driver.KernelModule = kernelModule()
	driver, err := cuda.Open("libcuda.so.1")
	version := 0
	if r.Driver.Loaded = err == nil; err == nil {
		version, err = driver.Version()
	}
	if err != nil {
		r.Driver.Error = err.Error()
		r.add(Error, "driver", err.Error(), adviceFor(err))
		return
	}
	r.Driver.major = version / 1000
	r.Driver.CUDAVersion = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	r.add(OK, "driver", "the driver supports CUDA "+r.Driver.CUDAVersion, "")
	if untried := checkpoint.Untried(r.Driver.KernelModule); !driver.CanCheckpoint() {
		r.add(Note, "checkpoint", "the driver cannot checkpoint a process, so tms pause --everything and tms move are refused",
			"install driver 570 or newer")
	} else if r.Driver.KernelModule != "" && untried != "" {
		r.add(Warning, "checkpoint", untried+"; so tms pause --everything and tms move are refused",
			"set "+checkpoint.Override+"=1 to take the risk (docs/what-stays.md)")
	} else {
		r.add(Note, "checkpoint", "after tms pause --everything, "+checkpoint.Risk(), "")
	}
	r.examineDevices(driver)
}

func (r *Report) examineDevices(driver *cuda.Driver) {
	count, err := driver.DeviceCount()
	if err == nil && count == 0 {
		err = cuda.NoDevice
	}
	if err != nil {
		r.add(Error, "devices", "the driver shows no device: "+err.Error(), advice[cuda.NoDevice])
		return
	}
	var without, onHost []string
	for ordinal := range count {
		device, err := examineDevice(driver, ordinal)
		if err != nil {
			r.add(Warning, "devices", fmt.Sprintf("device %d cannot be asked: %v", ordinal, err),
				"see whether nvidia-smi shows a fault of this device")
			continue
		}
		r.Devices = append(r.Devices, device)
		if driver.SharesHostMemory(cuda.Device(ordinal)) {
			onHost = append(onHost, fmt.Sprint(ordinal))
		}
		if !device.VMM {
			without = append(without, fmt.Sprint(ordinal))
		}
	}
	if len(onHost) > 0 {
		r.add(Note, "unified", "the memory of device "+strings.Join(onHost, ", ")+" is the host's: contents in host memory "+
			"would free nothing, so pauses save them to files",
			"set TMS_DISK_BACKUP_DIR to a folder on a disk, not on a tmpfs")
	}
	switch {
	case len(r.Devices) == 0:
		r.add(Error, "devices", "no device answers", advice[cuda.NoDevice])
	case len(without) == 0:
		r.add(OK, "vmm", "every device has virtual memory management", "")
	case len(without) == len(r.Devices):
		r.add(Error, "vmm", "no device has virtual memory management (attribute 102), so nothing can be paused",
			"use another kind of GPU, or a vGPU profile that has it")
	default:
		r.add(Warning, "vmm", "no virtual memory management on device "+strings.Join(without, ", "),
			"name the other devices in CUDA_VISIBLE_DEVICES")
	}
}

func examineDevice(driver *cuda.Driver, ordinal int) (d Device, err error) {
	d.Ordinal = ordinal
	if d.UUID, err = driver.DeviceUUID(cuda.Device(ordinal)); err != nil {
		d.UUID = ""
	}
	d.GPU = fleet.NumberOf(d.UUID, fleet.Shown())
	handle, err := driver.DeviceGet(ordinal)
	if err != nil {
		return d, err
	}
	if d.MemoryBytes, err = driver.DeviceTotalMem(handle); err != nil {
		return d, err
	}
	supported, err := driver.DeviceAttribute(cuda.AttributeVirtualMemoryManagementSupported, handle)
	if err != nil || supported == 0 {
		return d, err
	}
	d.VMM = true
	d.GranularityBytes, err = driver.MemGetAllocationGranularity(ordinal)
	return d, err
}

// Results of cuInit that say more than "it failed"; the texts follow cuda.h.
const (
	stubLibrary          cuda.Result = 34
	systemNotReady       cuda.Result = 802
	systemDriverMismatch cuda.Result = 803
	compatNotSupported   cuda.Result = 804
)

var advice = map[cuda.Result]string{
	cuda.NoDevice: "check that nvidia-smi shows a GPU, that a container has one (/dev/nvidia*), and " +
		"CUDA_VISIBLE_DEVICES",
	cuda.OutOfMemory: "raise the address space limit (ulimit -v unlimited), or free host memory",
	stubLibrary:      "take the toolkit's stubs folder out of LD_LIBRARY_PATH: it has no real libcuda.so.1",
	systemNotReady:   "wait for the driver's services, or start them (on NVSwitch machines nvidia-fabricmanager)",
	systemDriverMismatch: "libcuda.so.1 and the kernel module have different versions: reboot, or install the same " +
		"version of both",
	compatNotSupported: "take the cuda-compat folder out of LD_LIBRARY_PATH: this GPU does not support forward " +
		"compatibility",
}

func adviceFor(err error) string {
	failed, ok := errors.AsType[*cuda.Error](err)
	if !ok {
		return "install NVIDIA's driver 460.27 or newer; in a container start it with the GPUs (docker run --gpus " +
			"all); without a GPU, tms run --simulate has simulated devices"
	}
	return cmp.Or(advice[failed.Result], "see what the kernel log and nvidia-smi say about the driver")
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

// kernelModule returns the version of the loaded nvidia module, which writes both sources itself. The text around the
// number differs between the open and the closed module.
func kernelModule() string {
	for _, path := range []string{"/sys/module/nvidia/version", "/proc/driver/nvidia/version"} {
		text, _ := os.ReadFile(path)
		if version := versionNumber.Find(text); version != nil {
			return string(version)
		}
	}
	return ""
}
