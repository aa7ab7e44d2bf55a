// Package checkpoint takes away everything that another process has on its GPUs, and gives it back, by the driver's own
// functions for that (CUDA driver API, "CUDA Checkpointing": driver 570 and later). The process is running, locked (its
// CUDA calls wait), then checkpointed (it holds nothing on any device); and back. The package keeps no state: the
// driver knows the state of each process. It makes no context, so the caller itself holds no device memory.
package checkpoint

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"tms/vmm/cuda"
)

// State is a CUprocessState.
type State int32

const (
	Running      State = 0
	Locked       State = 1 // its CUDA calls wait
	Checkpointed State = 2 // and it holds nothing on any device
	Failed       State = 3 // the driver has lost its CUDA state
)

var names = map[State]string{Running: "running", Locked: "locked", Checkpointed: "checkpointed", Failed: "failed"}

func (s State) String() string { return cmp.Or(names[s], fmt.Sprintf("in state %d", int32(s))) }

var (
	// ErrUnsupported says that the driver cannot do this: there is no driver, or it is older than 570.
	ErrUnsupported = errors.New("the driver's checkpoint is not available")
	// ErrNoCUDA says that the process does not use CUDA, or is not there.
	ErrNoCUDA = errors.New("no process that uses CUDA")
	// ErrLate says that the driver did not finish in time. Its work may still go on.
	ErrLate = errors.New("the driver did not finish in time")
)

// Driver is the CUDA driver of this process, loaded but not initialised.
type Driver struct{ cuda *cuda.Driver }

// Open loads libcuda.so.1. Errors: ErrUnsupported, wrapped.
func Open() (*Driver, error) {
	d, err := cuda.Load("libcuda.so.1")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if !d.CanCheckpoint() {
		return nil, fmt.Errorf("%w: this one has no cuCheckpointProcessGetState, which came with driver 570",
			ErrUnsupported)
	}
	return &Driver{d}, nil
}

// State asks for the state of a process. (cuCheckpointProcessGetState)
// Errors: ErrNoCUDA, ErrUnsupported, *cuda.Error.
func (d *Driver) State(pid int) (State, error) {
	var state int32
	err := d.initialized(func() (err error) { state, err = d.cuda.CheckpointProcessGetState(pid); return err })
	switch {
	case err == nil:
		return State(state), nil
	case errors.Is(err, cuda.InvalidValue), errors.Is(err, cuda.NotInitialized):
		err = fmt.Errorf("%w: %w", ErrNoCUDA, err)
	case errors.Is(err, cuda.NotSupported):
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return Failed, err
}

// Lock makes the CUDA calls of a running process wait from now on. It waits up to timeout for work that the process has
// submitted, and for calls that have begun; after that the process runs on. (cuCheckpointProcessLock) Errors: ErrLate,
// *cuda.Error.
func (d *Driver) Lock(pid int, timeout time.Duration) error {
	milliseconds := max(1, min(timeout.Milliseconds(), math.MaxUint32)) // 0 would mean forever
	err := d.within(timeout+grace, func() error { return d.cuda.CheckpointProcessLock(pid, uint32(milliseconds)) })
	if errors.Is(err, cuda.NotReady) {
		return fmt.Errorf("%w: a CUDA call, or work on a device, has not ended within %v (%w)", ErrLate, timeout, err)
	}
	return err
}

// Checkpoint moves what a locked process has on its devices to host memory. (cuCheckpointProcessCheckpoint)
// Errors: ErrLate, *cuda.Error: with NotSupported, the process has something that this driver cannot move.
func (d *Driver) Checkpoint(pid int, timeout time.Duration) error {
	err := d.within(timeout, func() error { return d.cuda.CheckpointProcessCheckpoint(pid) })
	if errors.Is(err, cuda.NotSupported) {
		return fmt.Errorf("%w: the process has what this driver cannot checkpoint: managed memory, memory shared with "+
			"other processes, or a part of a GPU (MIG)", err)
	}
	return err
}

// firstWithPairs is the CUDA version that gave a restore pairs of GPUs. Before, they were reserved.
const firstWithPairs = 13000

// CanMove returns nil if the driver can restore a process on other GPUs. (cuDriverGetVersion)
// Errors: ErrUnsupported, wrapped; *cuda.Error.
func (d *Driver) CanMove() error {
	version, err := d.cuda.Version()
	if err == nil && version < firstWithPairs {
		err = fmt.Errorf("%w on another GPU: that came with driver 580 (CUDA 13.0), and this one is for CUDA %d.%d",
			ErrUnsupported, version/1000, version%1000/10)
	}
	return err
}

// Prepare does what a restore must do first, and which takes some tenths of a second; Restore says if it fails.
// (cuInit)
func (d *Driver) Prepare() { _ = d.cuda.Init() }

// Pair says on which GPU to restore what was on another, by their UUIDs as NVML writes them.
type Pair struct{ Old, New string }

// ErrLost says that the driver can never restore the process.
var ErrLost = errors.New("the driver has lost the process")

// Restore moves it back into the room that a look has found, because driver 580 loses a process without room. The
// process stays locked. Pairs move it to other GPUs: they have all GPUs of the machine, each once as an old and once as
// a new GPU. (cuInit, cuCheckpointProcessRestore) Errors: ErrLate, ErrLost; *cuda.Error: with OutOfMemory, others have
// the memory, and nothing has changed.
func (d *Driver) Restore(room *Room, pid int, timeout time.Duration, pairs ...Pair) error {
	if err := room.check(); err != nil {
		return err
	}
	raw := make([]cuda.GPUPair, len(pairs))
	for i, pair := range pairs {
		if !decode(pair.Old, &raw[i].Old) || !decode(pair.New, &raw[i].New) {
			return fmt.Errorf("%q and %q are no UUIDs of GPUs", pair.Old, pair.New)
		}
	}
	return within(timeout, func() error {
		unusable := d.cuda.Init() // this process may have no devices (CUDA_VISIBLE_DEVICES)
		err := d.cuda.CheckpointProcessRestore(pid, raw)
		switch {
		case errors.Is(err, cuda.NotInitialized) && unusable != nil: // else the driver is in persistence mode
			return unusable
		case errors.Is(err, cuda.OutOfMemory): // only another try shows whether the driver has lost the process
			first := err
			if err = d.cuda.CheckpointProcessRestore(pid, raw); errors.Is(err, cuda.OperatingSystem) {
				return fmt.Errorf("%w: it found too little memory (%v), and answers every later restore with %d%.0w", ErrLost,
					first, int(cuda.OperatingSystem), err)
			}
		}
		return err
	})
}

func decode(uuid string, to *[16]byte) bool {
	bytes, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(uuid, "GPU-"), "-", ""))
	return copy(to[:], bytes) == len(to) && len(bytes) == len(to) && err == nil
}

// Unlock lets the CUDA calls of a locked process go on. (cuCheckpointProcessUnlock)
// Errors: *cuda.Error.
func (d *Driver) Unlock(pid int) error {
	return d.within(grace, func() error { return d.cuda.CheckpointProcessUnlock(pid) })
}

// grace is for what should take no time.
const grace = 10 * time.Second

// within gives up on a call after a time; the call goes on, on its thread.
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

// within is the function of that name, for a call that may need cuInit.
func (d *Driver) within(timeout time.Duration, call func() error) error {
	return within(timeout, func() error { return d.initialized(call) })
}

// initialized makes a call, and makes it again after cuInit where the driver wants that. For most calls it does not,
// and cuInit takes longer than they do.
func (d *Driver) initialized(call func() error) error {
	err := call()
	if errors.Is(err, cuda.NotInitialized) && d.cuda.Init() == nil {
		err = call()
	}
	return err
}
