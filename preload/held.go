package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/preload/goruntime"
	"tms/vmm/cuda"
)

const (
	// nvmlTime is how long a snapshot waits for a call of NVML that has begun.
	nvmlTime = 5 * time.Second
	// nvmlBegins is how long the program's calls wait for NVML, which may have each device of the machine started.
	nvmlBegins = 20 * time.Second
)

// isForSnapshot reports whether CRIU will dump the process after the pause.
func (t *task) isForSnapshot() bool {
	return t.Request.Op == control.Pause && t.Request.To == control.ToMemory && !t.Request.Hold
}

// givesRestBack reports whether the task has ended all that a snapshot has paused beside memory, with that result.
func (t *task) givesRestBack(result error) bool {
	if t.Request.Op == control.Undo {
		return slices.Contains(t.Resumed, rights.Rest)
	}
	return t.Request.Op == control.Resume && result == nil && (t.Tag == nil || t.Active)
}

// mayEndNVML refuses a snapshot of a process in which NVML is begun and not all calls can wait.
func (t *task) mayEndNVML() error {
	why := ""
	if found := C.held_unseen(); found != nil {
		why = C.GoString(found)
	} else if copies := copiesOfNVML(); len(copies) > 1 {
		why = "the process has more than one copy of NVML: " + strings.Join(copies, ", ")
	}
	if why == "" || t.Request.Force || bool(C.region_config.pause_force) {
		return nil
	}
	return cuda.Refuse(cuda.NotSupported, "NVML keeps files of the driver open in this process, which a snapshot closes and "+
		"opens again, and %s; or force the snapshot, while it is known that the program calls no NVML", why)
}

// copiesOfNVML lists the libraries that are mapped, with their first addresses where one is there twice (dlmopen).
func copiesOfNVML() (copies []string) {
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[2] == "00000000" && strings.HasPrefix(path.Base(fields[5]), "libnvidia-ml.so") {
			copies = append(copies, fields[5]+" at "+fields[0])
		}
	}
	return slices.Compact(copies)
}

// endNVML ends NVML in the process, so that no file of its stays open. The program's calls wait until beginNVML. NVML may
// wait for the loader's lock, and the thread that has the lock for the end of this pause: so the wait has an end.
func (t *task) endNVML() error {
	if err := helped(func() C.int { return C.held_hold(C.double(nvmlTime.Seconds())) }); err != nil {
		return err
	}
	snapshot := C.held_snapshot()
	ended := started(func() C.int { return C.held_end() })
	limit := max(nvmlTime, control.Seconds(t.Request.TimeoutSeconds()))
	if !isLate(ended, limit) || !bool(C.held_end_in_vain()) {
		return <-ended
	}
	go func() {
		if isLate(ended, nvmlBegins) { // the thread with the loader's lock may be one whose call waits
			goOn(snapshot)
		}
		logged(ended)
	}()
	return cuda.Refuse(cuda.NotReady, "NVML has not ended in time for a snapshot: nvmlShutdown has not returned. A library that "+
		"was being loaded may have been in its way: take the snapshot again")
}

// beginNVML begins it again, as often as it was begun. What fails is a line on stderr: the program goes on without.
func beginNVML() {
	snapshot := C.held_snapshot()
	begun := started(func() C.int { return C.held_begin() })
	if isLate(begun, nvmlBegins) && goOn(snapshot) {
		go logged(begun)
		return
	}
	logged(begun)
}

// goOn lets the calls go that wait for NVML after that snapshot, and reports whether they did wait.
func goOn(snapshot C.uint32_t) bool {
	if !bool(C.held_go_on(snapshot)) {
		return false
	}
	goruntime.Log("NVML has not begun again in time after a snapshot: the program's calls of it may fail until it has")
	return true
}

// started makes a call on another goroutine. The channel has room for its result.
func started(call func() C.int) chan error {
	result := make(chan error, 1)
	go func() { result <- helped(call) }()
	return result
}

// isLate reports whether no result has come in time. A result stays in the channel.
func isLate(result chan error, limit time.Duration) bool {
	select {
	case err := <-result:
		result <- err
		return false
	case <-time.After(limit):
		return true
	}
}

func logged(returned <-chan error) {
	if err := <-returned; err != nil {
		goruntime.Log(fmt.Sprint(err))
	}
}
