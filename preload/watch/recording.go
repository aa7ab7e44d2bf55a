// Package watch sees each allocation of the process and changes none. It is C for the most part, because calls that are
// passed on do not enter Go (watch.h says which threads call it, and when).
//
// Its nouns: a block is an allocation, a handle of memory or a mapping of such memory, and one table has all blocks. An
// owner is a library on a device, and the account counts the blocks of each owner. A recording is a file with all that
// happens to blocks. An obstacle is a call whose memory the driver's checkpoint cannot take.
package watch

/*
#cgo CFLAGS: -std=gnu11 -O2 -I${SRCDIR}/../../region -I${SRCDIR}/../../forward
#cgo LDFLAGS: -lpthread
#include "parts.h"
#include "region.h"
*/
import "C"

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// What is recorded of the engine, besides the calls that watch.c sees: pauses, resumes and moves, and the figures of each
// tag around them, and now and then while the program allocates.

// engine is the one whose memory is recorded, or nil before there is one.
var engine atomic.Pointer[vmm.Engine]

// Engine makes recordings include the engine's figures.
func Engine(e *vmm.Engine) { engine.Store(e) }

type figuresOf struct {
	device int
	tag    string
}

// figures are the last ones written, so that only changes are written.
var figures struct {
	sync.Mutex
	recording int // which of recording.c's recordings it was
	known     map[figuresOf]C.struct_recording_figures
	gpus      map[int]string // the UUIDs of devices, which a move changes
}

// Figures are read again after this time at the earliest, and after a hundred times as long as reading them takes.
const (
	figuresEvery = 50 * time.Millisecond
	figuresShare = 100
)

// Transition writes what the engine does.
func Transition(t vmm.Transition) {
	if !C.watch_is_on(C.WATCH_RECORDS) {
		return
	}
	writeFigures(engine.Load())
	kind := map[string]C.enum_recording_kind{"pause": C.RECORDING_PAUSE, "resume": C.RECORDING_RESUME,
		"move": C.RECORDING_MOVE}[t.Operation]
	operation := C.struct_recording_operation{over: C.bool(t.Over), number: C.uint32_t(t.Number), kind: kind,
		code: C.int(cuda.Code(t.Err)), bytes: C.uint64_t(t.Bytes), copied: C.uint64_t(t.Copied),
		took: C.uint64_t(t.Took), waited: C.uint64_t(t.Waited), copying: C.uint64_t(t.Copying)}
	if t.Tags != nil {
		operation.tag = interned(strings.Join(t.Tags, ", "))
	}
	C.recording_operation(&operation)
}

//export tmsRecordFigures
func tmsRecordFigures() {
	start := time.Now()
	_ = goruntime.Run(func() error {
		writeFigures(engine.Load())
		return nil
	})
	C.recording_sample_after(C.uint64_t(max(figuresEvery, figuresShare*time.Since(start))))
}

// writeFigures writes the figures of each tag whose figures have changed, and zeros for one that is gone.
func writeFigures(e *vmm.Engine) {
	if e == nil {
		return
	}
	figures.Lock()
	defer figures.Unlock()
	if now := int(C.recording_number()); now != figures.recording {
		figures.recording, figures.known, figures.gpus = now, nil, map[int]string{}
	}
	known := map[figuresOf]C.struct_recording_figures{}
	for _, d := range e.Records().Recorded().Devices {
		if d.UUID != figures.gpus[d.Device] {
			figures.gpus[d.Device] = d.UUID
			C.recording_device(C.int(d.Device), interned(d.UUID))
		}
		for _, t := range d.Tags {
			name := stats.TagName(t.Tag)
			key := figuresOf{d.Device, name}
			now := C.struct_recording_figures{device: C.int(d.Device), tag: interned(name),
				live: C.uint64_t(t.LiveBytes), physical: C.uint64_t(t.PhysicalBytes), host: C.uint64_t(t.HostBytes),
				disk: C.uint64_t(t.DiskBytes), peer: C.uint64_t(t.BackupBytes - t.HostBytes - t.DiskBytes)}
			if before, ok := figures.known[key]; !ok || before != now {
				C.recording_figures(&now)
			}
			known[key] = now
		}
	}
	for key, before := range figures.known {
		if _, ok := known[key]; !ok {
			C.recording_figures(&C.struct_recording_figures{device: before.device, tag: before.tag})
		}
	}
	figures.known = known
}

// Existing writes what watch.c has not seen: what the program has mapped itself, or made before.
func Existing(a vmm.Allocation, earlier bool) {
	C.recording_existing(C.int(a.Device), C.uintptr_t(a.Address), C.uint64_t(a.Size), interned(a.Tag),
		C.bool(earlier), C.bool(a.Mapped))
}

// StartRecording records to a file for another process, beginning with the allocations that exist.
func StartRecording(file string) error {
	if words := C.recording_start((*C.char)(goruntime.Terminated(file))); words != nil {
		return cuda.Refuse(cuda.OperatingSystem, "%s", C.GoString(words))
	}
	if e := engine.Load(); e != nil {
		e.Records().Allocations(func(a vmm.Allocation) { Existing(a, true) })
		writeFigures(e)
	}
	return nil
}

// StopRecording ends the recording, if it is this one. Errors: it had ended before, and why.
func StopRecording(which int) error {
	writeFigures(engine.Load())
	if words := C.recording_end(C.int(which)); words != nil {
		return cuda.Refuse(cuda.OperatingSystem, "%s", C.GoString(words))
	}
	return nil
}

// interned returns a copy of a text that lives as long as the process, or nil if memory is short.
func interned(text string) *C.char { return C.region_intern((*C.char)(goruntime.Terminated(text))) }
