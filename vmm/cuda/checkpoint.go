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

func (d *Driver) CheckpointProcessRestore(pid int) error {
	return d.call("cuCheckpointProcessRestore", uintptr(pid), 0)
}

func (d *Driver) CheckpointProcessUnlock(pid int) error {
	return d.call("cuCheckpointProcessUnlock", uintptr(pid), 0)
}
