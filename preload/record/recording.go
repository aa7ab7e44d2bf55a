// Package record writes what the process does with device memory to a file, which internal/report/trace reads.
package record

/*
#cgo CFLAGS: -std=gnu11 -O2 -I${SRCDIR}/../../region -I${SRCDIR}/../../forward
#cgo LDFLAGS: -lpthread
#include "record.h"
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

// What is recorded of the engine, besides the allocations that trace.c sees: pauses, resumes and moves, and the figures
// of each tag around them, and now and then while the program allocates.

// engine is the one whose memory is recorded, or nil before there is one.
var engine atomic.Pointer[vmm.Engine]

// Watch makes recordings include the engine's figures.
func Watch(e *vmm.Engine) { engine.Store(e) }

type figuresOf struct {
	device int
	tag    string
}

// figures are the last ones written, so that only changes are written.
var figures struct {
	sync.Mutex
	recording int // which of trace.c's recordings it was
	known     map[figuresOf]C.struct_trace_figures
}

// Figures are read again after this time at the earliest, and after a hundred times as long as reading them takes.
const (
	figuresEvery = 50 * time.Millisecond
	figuresShare = 100
)

// Transition writes what the engine does.
func Transition(t vmm.Transition) {
	if !C.trace_is_on() {
		return
	}
	writeFigures(engine.Load())
	kind := map[string]C.enum_trace_kind{"pause": C.TRACE_PAUSE, "resume": C.TRACE_RESUME,
		"move": C.TRACE_MOVE}[t.Operation]
	operation := C.struct_trace_operation{over: C.bool(t.Over), number: C.uint32_t(t.Number), kind: kind,
		code: C.int(cuda.Code(t.Err)), bytes: C.uint64_t(t.Bytes), copied: C.uint64_t(t.Copied),
		took: C.uint64_t(t.Took), waited: C.uint64_t(t.Waited), copying: C.uint64_t(t.Copying)}
	if t.Tags != nil {
		operation.tag = interned(strings.Join(t.Tags, ", "))
	}
	C.trace_operation(&operation)
}

//export tmsTraceFigures
func tmsTraceFigures() {
	start := time.Now()
	_ = goruntime.Run(func() error {
		writeFigures(engine.Load())
		return nil
	})
	C.trace_sample_after(C.uint64_t(max(figuresEvery, figuresShare*time.Since(start))))
}

// writeFigures writes the figures of each tag whose figures have changed, and zeros for one that is gone.
func writeFigures(e *vmm.Engine) {
	if e == nil {
		return
	}
	figures.Lock()
	defer figures.Unlock()
	if now := int(C.trace_recording()); now != figures.recording {
		figures.recording, figures.known = now, nil
	}
	known := map[figuresOf]C.struct_trace_figures{}
	for _, d := range e.Records().Recorded().Devices {
		for _, t := range d.Tags {
			name := stats.TagName(t.Tag)
			key := figuresOf{d.Device, name}
			now := C.struct_trace_figures{device: C.int(d.Device), tag: interned(name),
				live: C.uint64_t(t.LiveBytes), physical: C.uint64_t(t.PhysicalBytes), host: C.uint64_t(t.HostBytes),
				disk: C.uint64_t(t.DiskBytes), peer: C.uint64_t(t.BackupBytes - t.HostBytes - t.DiskBytes)}
			if before, ok := figures.known[key]; !ok || before != now {
				C.trace_figures(&now)
			}
			known[key] = now
		}
	}
	for key, before := range figures.known {
		if _, ok := known[key]; !ok {
			C.trace_figures(&C.struct_trace_figures{device: before.device, tag: before.tag})
		}
	}
	figures.known = known
}

// Allocation writes what trace.c has not seen: what the program has mapped itself, or made before.
func Allocation(a vmm.Allocation, earlier bool) {
	C.trace_allocation(C.int(a.Device), C.uintptr_t(a.Address), C.uint64_t(a.Size), interned(a.Tag),
		C.bool(earlier), C.bool(a.Mapped))
}

// Start records to a file for another process, beginning with the allocations that exist.
func Start(file string) error {
	if words := C.trace_start((*C.char)(goruntime.Terminated(file))); words != nil {
		return cuda.Refuse(cuda.OperatingSystem, "%s", C.GoString(words))
	}
	if e := engine.Load(); e != nil {
		e.Records().Allocations(func(a vmm.Allocation) { Allocation(a, true) })
		writeFigures(e)
	}
	return nil
}

// Stop ends the recording, if it is this one. Errors: it had ended before, and why.
func Stop(which int) error {
	writeFigures(engine.Load())
	if words := C.trace_end(C.int(which)); words != nil {
		return cuda.Refuse(cuda.OperatingSystem, "%s", C.GoString(words))
	}
	return nil
}

// interned returns a copy of a text that lives as long as the process, or nil if memory is short.
func interned(text string) *C.char { return C.region_intern((*C.char)(goruntime.Terminated(text))) }
