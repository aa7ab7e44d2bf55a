package cuda

import "unsafe"

// CanCheckpoint reports whether the driver has the functions below, which came with driver 570.
func (d *Driver) CanCheckpoint() bool { return d.address[fnCheckpointProcessGetState] != 0 }

// CheckpointProcessGetState is cuCheckpointProcessGetState; the state is a CUprocessState.
func (d *Driver) CheckpointProcessGetState(pid int) (state int32, err error) {
	err = d.call(fnCheckpointProcessGetState, uintptr(pid), uintptr(unsafe.Pointer(&state)))
	return state, err
}

// CheckpointProcessLock is cuCheckpointProcessLock.
func (d *Driver) CheckpointProcessLock(pid int, milliseconds uint32) error {
	arguments := &struct { // CUcheckpointLockArgs
		timeoutMs, reserved0 uint32
		reserved1            [7]uint64
	}{timeoutMs: milliseconds}
	return d.call(fnCheckpointProcessLock, uintptr(pid), uintptr(unsafe.Pointer(arguments)))
}

// CheckpointProcessCheckpoint is cuCheckpointProcessCheckpoint.
func (d *Driver) CheckpointProcessCheckpoint(pid int) error {
	return d.call(fnCheckpointProcessCheckpoint, uintptr(pid), 0)
}

// CheckpointProcessRestore is cuCheckpointProcessRestore.
func (d *Driver) CheckpointProcessRestore(pid int) error {
	return d.call(fnCheckpointProcessRestore, uintptr(pid), 0)
}

// CheckpointProcessUnlock is cuCheckpointProcessUnlock.
func (d *Driver) CheckpointProcessUnlock(pid int) error {
	return d.call(fnCheckpointProcessUnlock, uintptr(pid), 0)
}
