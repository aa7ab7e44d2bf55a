package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"tms/internal/control"
	"tms/internal/machine/hostmemory"
	"tms/preload/watch"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// The process's own part in the driver's checkpoint, which others make of it (cmd/tms): it refuses what the driver
// would not survive, and knows afterwards that its CUDA calls wait. everything.c has the rest.

// everything runs before a request of the socket is carried out. While the driver has the process, a driver call would
// wait, or kill it.
func (t *task) everything() error {
	if C.checkpoint_asked() && t.Request.Op != control.Undo { // of its own: see there
		if part := t.process.checkpoint.driver.Load(); part != nil && part.Lost != "" {
			return cuda.Refuse(cuda.OperatingSystem, "%s", part.Lost)
		}
		if !t.Request.Everything {
			return cuda.Refuse(cuda.IllegalState, "everything of this process is paused, the driver's part too: "+
				"its CUDA calls wait. tms resume brings it back")
		}
		if t.Request.Op != control.Move {
			if err := t.process.settleEverything(); err != nil {
				return err
			}
		}
	}
	if t.Request.Everything && t.Request.Op == control.Pause {
		return t.process.notCheckpointed()
	}
	return nil
}

// settleEverything notes that the driver has given the process back, and lets calls that poll go on. While a client is
// still making a pause of everything, only that client may do so: the driver's checkpoint may still come.
func (p *Process) settleEverything() error {
	if C.checkpoint_pending() {
		return cuda.Refuse(cuda.IllegalState, "another command is pausing everything of this process at this moment; "+
			"try again when it has ended")
	}
	if C.checkpoint_driver_has() {
		return cuda.Refuse(cuda.IllegalState, "the driver has this process checkpointed; tms resume restores it first")
	}
	C.checkpoint_set(false)
	p.releasePolls()
	return nil
}

// notCheckpointed returns an error that names what the driver cannot checkpoint of this process. The driver may lose
// the process if it tries. (NVIDIA's cuda-checkpoint: managed memory, memory shared between processes; cuDeviceGetName:
// parts of GPUs)
func (p *Process) notCheckpointed() error {
	const otherwise = "; without --everything, what is pausable can be paused"
	if call := C.obstacle_present(); call != nil {
		return cuda.Refuse(cuda.NotSupported, "the driver's checkpoint would lose this process: it has called %s, and "+
			"managed memory, multicast objects, or memory that processes share cannot be checkpointed%s%s",
			C.GoString(call), ncclShares(), otherwise)
	}
	e := p.engine.Load()
	if e == nil {
		return nil
	}
	names, err := e.Records().DeviceNames()
	for ordinal, name := range names {
		if strings.Contains(name, " MIG ") {
			return cuda.Refuse(cuda.NotSupported, "%s is a part of a GPU (%s), which the driver cannot "+
				"checkpoint%s", stats.DeviceName(ordinal, p.uuidOf(ordinal)), name, otherwise)
		}
	}
	return err
}

// checkpoint is what the process knows of the driver's checkpoint of it.
type checkpoint struct {
	// asking is held, shared, while a thread asks the driver for figures, and a pause of everything waits for that.
	// Otherwise such a call would wait at the gate until the resume. Each status would wait for the call, and a resume
	// asks for a status.
	asking sync.RWMutex

	driver        atomic.Pointer[control.Driver] // the driver's part, as noted by the client of the last pause; or nil
	devicesBefore []control.Device               // on which the process was at the last pause
	unlooked      atomic.Bool                    // the process has not looked since where its devices are
}

func (p *Process) beginEverything() {
	p.checkpoint.asking.Lock()
	defer p.checkpoint.asking.Unlock()
	p.checkpoint.driver.Store(nil)
	if e := p.engine.Load(); e != nil {
		p.checkpoint.devicesBefore = watch.Devices(p.driver)
		p.checkpoint.unlooked.Store(true)
	}
	C.checkpoint_set(true)
}

// findPlaces finds out where the devices are, if the driver may have moved them since the last look.
func (p *Process) findPlaces(e *vmm.Engine) {
	if p.checkpoint.unlooked.Swap(false) {
		e.FindPlaces()
	}
}

// stays returns why the process cannot be moved to another GPU, or "" if nothing is known that prevents it. An NCCL
// communicator keeps the ways between its ranks' GPUs unless it is suspended. While everything is paused, stays asks
// only about communicators. The caller holds askingDriver.
func (p *Process) stays() (words string) {
	out := bool(C.checkpoint_asked())
	eachCommunicator(false, func(c *C.struct_gate_communicator) {
		if c.ranks > 1 && !bool(c.suspended) && (out || c.obstacle != nil) {
			words = fmt.Sprintf("a communicator of %s with %d ranks is not suspended, so NCCL would keep the ways "+
				"between its old GPUs", ncclVersion(c.version), c.ranks)
			if c.obstacle != nil {
				words += ": " + C.GoString(c.obstacle)
			}
		}
	})
	if set := p.setAttached(); words == "" && set != "" {
		words = fmt.Sprintf("it has attached the set %q, which stays on its GPU", set)
	}
	if words == "" && !out {
		if err := p.notCheckpointed(); err != nil {
			words = err.Error()
		}
	}
	return words
}

// statsOf reads the engine's statistics, and adds what the host and the settings say. It makes no driver call while the
// driver may have the process. The caller holds askingDriver. temporary is TMPDIR.
func (p *Process) statsOf(e *vmm.Engine, temporary *C.char) (stats control.Stats, err error) {
	stats = control.Stats{Version: C.GoString(C.tms_version()), Started: true, Everything: bool(C.checkpoint_asked()),
		Capturing: state().Capturing}
	if stats.Everything {
		stats.Stats, err = e.Records().KnownStats()
	} else {
		p.findPlaces(e)
		stats.Stats, err = e.Records().Stats()
	}
	p.pools.addTo(stats.Devices)
	for i := range stats.Devices {
		stats.Devices[i].LimitBytes = uint64(C.region_config.limit_bytes)
	}
	if available := hostmemory.Available("self", p.ledger.Promised()); available < math.MaxUint64 {
		stats.HostAvailableBytes = &available
	}
	var settings C.struct_operation_settings
	C.operation_settings(&settings, temporary)
	stats.DiskDirectory = C.GoString(settings.disk_dir)
	return stats, err
}
