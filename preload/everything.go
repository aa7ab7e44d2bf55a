package main

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"math"
	"strings"

	"tms/internal/control"
	"tms/internal/hostmemory"
	"tms/vmm"
	"tms/vmm/cuda"
)

// What the process itself has to do with the driver's checkpoint, which others make of it (cmd/tms): to refuse what the
// driver would not survive, and to know afterwards that its CUDA calls wait. everything.c has the rest.

// everything is what comes before a request of the socket is carried out, with regard to the driver's checkpoint.
func (t *task) everything() error {
	asked := bool(C.everything_asked())
	switch {
	case t.request.Op == control.Undo: // of its own: see there
	case t.request.Op == control.Resume && t.request.Everything:
		C.everything_set(false)
	case asked && !t.request.Everything:
		return &refusal{"everything of this process is paused, the driver's part too: its CUDA calls wait. tms resume brings it back",
			cuda.IllegalState}
	case t.request.Everything && t.request.Op == control.Pause:
		return notCheckpointed()
	}
	return nil
}

// notCheckpointed tells what the driver cannot checkpoint of this process. It may lose the process when it tries.
// (NVIDIA's cuda-checkpoint: managed memory, memory shared between processes; cuDeviceGetName: parts of GPUs)
func notCheckpointed() error {
	const otherwise = "; without --everything, what is pausable can be paused"
	if call := C.everything_obstacle(); call != nil {
		return &refusal{fmt.Sprintf("the driver's checkpoint would lose this process: it has called %s, and managed memory, multicast "+
			"objects, or memory that processes share cannot be checkpointed%s%s", C.GoString(call), ncclShares(), otherwise), cuda.NotSupported}
	}
	if address := lent(); address != 0 {
		return &refusal{fmt.Sprintf("the driver's checkpoint would lose this process: its memory at %#x was exported, and memory that "+
			"processes share cannot be checkpointed%s%s", address, ncclShares(), otherwise), cuda.NotSupported}
	}
	e := engine.Load()
	if e == nil {
		return nil
	}
	names, err := e.DeviceNames()
	for ordinal, name := range names {
		if strings.Contains(name, " MIG ") {
			return &refusal{fmt.Sprintf("device %d is a part of a GPU (%s), which the driver cannot checkpoint%s", ordinal, name, otherwise),
				cuda.NotSupported}
		}
	}
	return err
}

// statsOf reads the statistics, with what the host and the settings add to the engine's, and without a call of the
// driver where those may wait. temporary is TMPDIR.
func statsOf(e *vmm.Engine, temporary *C.char) (stats vmm.Stats, err error) {
	if C.everything_asked() {
		stats, err = e.KnownStats()
	} else {
		stats, err = e.Stats()
	}
	stats.Capturing = state().Capturing
	if available := min(hostmemory.Machine(), hostmemory.Group("self")); available < math.MaxUint64 {
		stats.HostAvailableBytes = &available
	}
	var operation C.struct_operation
	C.operation_settings(&operation, temporary)
	stats.DiskDirectory = C.GoString(operation.disk_dir)
	return stats, err
}

// lent is an address whose memory was given to others by a route that libtms_reach.so alone sees; 0: none.
func lent() uintptr {
	if C.gate_unusable() != nil {
		return 0
	}
	return uintptr(C.gate_exported(0, true))
}
