package cuda

import "unsafe"

// CanCheckpoint reports whether the driver has the functions below, which came with driver 570.
func (d *Driver) CanCheckpoint() bool { return d.address["cuCheckpointProcessGetState"] != 0 }

// CheckpointProcessGetState is cuCheckpointProcessGetState; the state is a CUprocessState.
func (d *Driver) CheckpointProcessGetState(pid int) (state int32, err error) {
	err = d.call("cuCheckpointProcessGetState", uintptr(pid), uintptr(unsafe.Pointer(&state)))
	return state, err
}

func (d *Driver) CheckpointProcessLock(pid int, milliseconds uint32) error {
	arguments := &struct { // CUcheckpointLockArgs
		timeoutMs, reserved0 uint32
		reserved1            [7]uint64
	}{timeoutMs: milliseconds}
	return d.call("cuCheckpointProcessLock", uintptr(pid), uintptr(unsafe.Pointer(arguments)))
}

func (d *Driver) CheckpointProcessCheckpoint(pid int) error {
	return d.call("cuCheckpointProcessCheckpoint", uintptr(pid), 0)
}

// GPUPair is a CUcheckpointGpuPair: the UUIDs of a GPU that was checkpointed, and of the one to restore it on.
type GPUPair struct{ Old, New [16]byte }

// CheckpointProcessRestore restores on the same GPUs, or as the pairs say, which came with CUDA 13.0.
func (d *Driver) CheckpointProcessRestore(pid int, pairs []GPUPair) error {
	if len(pairs) == 0 {
		return d.call("cuCheckpointProcessRestore", uintptr(pid), 0)
	}
	arguments := &struct { // CUcheckpointRestoreArgs
		gpuPairs      *GPUPair
		gpuPairsCount uint32
		_             [44]byte
		_             uint64
	}{gpuPairs: &pairs[0], gpuPairsCount: uint32(len(pairs))}
	return d.call("cuCheckpointProcessRestore", uintptr(pid), uintptr(unsafe.Pointer(arguments)))
}

func (d *Driver) CheckpointProcessUnlock(pid int) error {
	return d.call("cuCheckpointProcessUnlock", uintptr(pid), 0)
}
