// Package checkpoint takes everything that another process has on its GPUs away, and gives it back, by the driver's
// own functions for that (CUDA driver API, "CUDA Checkpointing": driver 570 and later). The process is running,
// locked (its CUDA calls wait), then checkpointed (it holds nothing on any device); and back. Nothing is remembered
// here: the driver knows the state of each process. No context is made, so the caller itself holds no device memory.
//
// What the process's own memory is good for meanwhile, and what libtms.so does before, is the business of cmd/tms.
package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"tms/vmm/cuda"
)

// State is a CUprocessState.
type State int32

// The states.
const (
	Running      State = 0
	Locked       State = 1 // its CUDA calls wait
	Checkpointed State = 2 // and it holds nothing on any device
	Failed       State = 3 // the driver has lost its CUDA state
)

func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Locked:
		return "locked"
	case Checkpointed:
		return "checkpointed"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("in state %d", int32(s))
}

var (
	// ErrUnsupported says that the driver has none of this: there is none, or it is older than 570.
	ErrUnsupported = errors.New("the driver's checkpoint is not to be had")
	// ErrNoCUDA says that the process does not use CUDA, or is not there.
	ErrNoCUDA = errors.New("no process that uses CUDA")
	// ErrLate says that the driver had not come to an end in time. What it has begun may still go on.
	ErrLate = errors.New("the driver did not finish in time")
)

// functions of the driver.
const (
	fnInit = iota
	fnGetErrorName
	fnGetErrorString
	fnGetState
	fnLock
	fnCheckpoint
	fnRestore
	fnUnlock
	functions
)

var names = [functions]string{"cuInit", "cuGetErrorName", "cuGetErrorString", "cuCheckpointProcessGetState",
	"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"}

// Driver is the CUDA driver of this process, loaded and not initialised.
type Driver struct {
	address [functions]uintptr
}

// Open loads libcuda.so.1. Errors: ErrUnsupported, wrapped.
func Open() (*Driver, error) {
	runtime.LockOSThread() // the loader keeps the words of its error for the thread
	defer runtime.UnlockOSThread()
	library, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	var d Driver
	for f, name := range names {
		if d.address[f], err = purego.Dlsym(library, name); err != nil {
			return nil, fmt.Errorf("%w: this one has no %s, which came with driver 570", ErrUnsupported, name)
		}
	}
	return &d, nil
}

// State asks for the state of a process. (cuCheckpointProcessGetState)
// Errors: ErrNoCUDA, ErrUnsupported, *cuda.Error.
func (d *Driver) State(pid int) (State, error) {
	state := Failed
	err := d.initialized(fnGetState, pid, unsafe.Pointer(&state))
	if errors.Is(err, cuda.InvalidValue) || errors.Is(err, cuda.NotInitialized) {
		return Failed, fmt.Errorf("%w: %w", ErrNoCUDA, err)
	}
	return state, err
}

// lockArguments is a CUcheckpointLockArgs.
type lockArguments struct {
	timeoutMs, reserved0 uint32
	reserved1            [7]uint64
}

// Lock has the CUDA calls of a running process wait from now on. Work that the process has given its devices, and
// calls that have begun, are waited for, no longer than timeout; then it runs on. (cuCheckpointProcessLock)
// Errors: ErrLate, *cuda.Error.
func (d *Driver) Lock(pid int, timeout time.Duration) error {
	milliseconds := max(1, min(timeout.Milliseconds(), math.MaxUint32)) // 0 would be for ever
	arguments := &lockArguments{timeoutMs: uint32(milliseconds)}
	err := within(timeout+grace, func() error { return d.initialized(fnLock, pid, unsafe.Pointer(arguments)) })
	if errors.Is(err, cuda.NotReady) {
		return fmt.Errorf("%w: a CUDA call, or work on a device, has not ended within %v (%w)", ErrLate, timeout, err)
	}
	return err
}

// Checkpoint moves what a locked process has on its devices to host memory. (cuCheckpointProcessCheckpoint)
// Errors: ErrLate, *cuda.Error: of NotSupported, the process has what this driver cannot move.
func (d *Driver) Checkpoint(pid int, timeout time.Duration) error {
	err := within(timeout, func() error { return d.initialized(fnCheckpoint, pid, nil) })
	if errors.Is(err, cuda.NotSupported) {
		return fmt.Errorf("%w: the process has what this driver cannot checkpoint: managed memory, memory shared with "+
			"other processes, or a part of a GPU (MIG)", err)
	}
	return err
}

// Restore moves it back; the process stays locked. (cuInit, cuCheckpointProcessRestore)
// Errors: ErrLate, *cuda.Error: of OutOfMemory, others have the memory, and nothing has changed.
func (d *Driver) Restore(pid int, timeout time.Duration) error {
	return within(timeout, func() error {
		unusable := d.initialize() // without devices of its own, perhaps (CUDA_VISIBLE_DEVICES)
		err := d.call(fnRestore, pid, nil)
		if errors.Is(err, cuda.NotInitialized) && unusable != nil { // else the driver is in persistence mode
			return unusable
		}
		return err
	})
}

// Unlock lets the CUDA calls of a locked process go on. (cuCheckpointProcessUnlock)
// Errors: *cuda.Error.
func (d *Driver) Unlock(pid int) error {
	return within(grace, func() error { return d.initialized(fnUnlock, pid, nil) })
}

// grace is for what should take no time.
const grace = 10 * time.Second

// within gives a call up after a time. It goes on then, on its thread.
func within(timeout time.Duration, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(timeout):
		return fmt.Errorf("%w: %v were not enough", ErrLate, timeout.Round(time.Millisecond))
	}
}

func (d *Driver) initialize() error {
	result, _, _ := purego.SyscallN(d.address[fnInit], 0)
	return d.result(fnInit, result)
}

// initialized makes a call, and once more after cuInit where the driver wants that. Of most it does not, and cuInit
// takes longer than they.
func (d *Driver) initialized(function, pid int, arguments unsafe.Pointer) error {
	err := d.call(function, pid, arguments)
	if errors.Is(err, cuda.NotInitialized) && d.initialize() == nil {
		err = d.call(function, pid, arguments)
	}
	return err
}

func (d *Driver) call(function, pid int, arguments unsafe.Pointer) error {
	result, _, _ := purego.SyscallN(d.address[function], uintptr(pid), uintptr(arguments))
	return d.result(function, result)
}

func (d *Driver) result(function int, result uintptr) error {
	code := cuda.Result(int32(result))
	if code == cuda.Success {
		return nil
	}
	if code == cuda.NotSupported && function == fnGetState {
		return fmt.Errorf("%w: %s", ErrUnsupported, d.text(fnGetErrorString, code))
	}
	return &cuda.Error{Call: names[function], Result: code, Name: d.text(fnGetErrorName, code), Text: d.text(fnGetErrorString, code)}
}

func (d *Driver) text(function int, code cuda.Result) string {
	var text *byte
	result, _, _ := purego.SyscallN(d.address[function], uintptr(code), uintptr(unsafe.Pointer(&text)))
	if result != 0 || text == nil {
		return "unknown error"
	}
	return cString(text)
}

func cString(text *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(text), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(text, n))
}
