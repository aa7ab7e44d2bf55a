package main

// #include "shim.h"
import "C"

import (
	"errors"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
)

// operation is what a function of tms.h does on another thread, because it may take long (operation.c). It copies its
// arguments from C's memory, because the calling thread may leave before the end.
type operation interface {
	// run returns the bytes that were freed or mapped, or an address, or a handle.
	run(*Process, *vmm.Engine) (uint64, error)
}

// newOperation is the table of operations.
func newOperation(o *C.struct_operation) operation {
	asked, set := &o.transition, &o.set
	switch o.kind {
	case C.OPERATION_PAUSE, C.OPERATION_DISCARD:
		options := transitionOf(o)
		options.Discard = o.kind == C.OPERATION_DISCARD
		return &pauseOperation{options: options, discarded: texts(asked.discarded), importers: float64(asked.wait)}
	case C.OPERATION_PAUSE_GATED:
		return &gatedPauseOperation{options: transitionOf(o), timeout: seconds(asked.wait)}
	case C.OPERATION_RESUME:
		resume := resumeOperation{options: transitionOf(o), memory: float64(asked.wait)}
		if asked.ordered_count > 0 {
			return &orderedResumeOperation{resume, uint64(asked.order), orderOf(asked)}
		}
		return &resume
	case C.OPERATION_AWAIT:
		return &awaitOperation{within: float64(asked.wait)}
	case C.OPERATION_PREPARE:
		return &prepareOperation{tags: texts(asked.tags)}
	case C.OPERATION_TRIM:
		return trimOperation{}
	case C.OPERATION_SERVE:
		return serveOperation{}
	case C.OPERATION_IMPORT:
		return &importOperation{handle: o.imported.handle, device: int(o.imported.device)}
	case C.OPERATION_IMPORT_HANDLE:
		return &importHandleOperation{token: o.imported.handle, device: int(o.imported.device)}
	case C.OPERATION_CLOSE:
		return &closeOperation{address: uintptr(o.address)}
	case C.OPERATION_SET_CREATE:
		return &createSetOperation{name: C.GoString(set.name), tag: C.GoString(set.tag), device: int(set.device)}
	case C.OPERATION_SET_OPEN:
		return &openSetOperation{name: C.GoString(set.name), tag: C.GoString(set.tag)}
	case C.OPERATION_SET_ADD:
		return &addToSetOperation{handle: uint64(set.handle), size: uint64(set.size)}
	case C.OPERATION_SET_SEAL:
		return &sealSetOperation{handle: uint64(set.handle),
			manifest: slices.Clone(unsafe.Slice((*byte)(set.manifest), set.size))}
	case C.OPERATION_SET_ATTACH:
		return &attachSetOperation{handle: uint64(set.handle)}
	case C.OPERATION_SET_ADVANCE:
		return &moveSetOperation{handle: uint64(set.handle)}
	case C.OPERATION_SET_BACK:
		return &moveSetOperation{handle: uint64(set.handle), back: true}
	case C.OPERATION_SET_SETTLE:
		return &settleSetOperation{handle: uint64(set.handle)}
	case C.OPERATION_SET_FOLLOW:
		return &followSetOperation{handle: uint64(set.handle), keeps: set.size > 0}
	default:
		return &closeSetOperation{handle: uint64(set.handle)}
	}
}

// tmsOperation starts an operation on a thread of the Go runtime and returns; operation_finish ends it.
//
//export tmsOperation
func tmsOperation(o *C.struct_operation) {
	asked := newOperation(o)
	go func() {
		var result uint64
		var err error
		switch asked.(type) {
		case serveOperation, *awaitOperation: // which need no driver
			err = goruntime.Run(func() error { _, err := asked.run(self, nil); return err })
		default:
			err = self.enter(func(e *vmm.Engine) (err error) {
				result, err = asked.run(self, e)
				return err
			})
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		code := C.int(cuda.Code(err))
		if errors.Is(err, shareStopped{}) {
			code = C.SHARE_STOPPED
		}
		C.operation_finish(o, code, (*C.char)(goruntime.Terminated(text)), C.uint64_t(result))
	}()
	// The goroutine waits on this thread's P, and the thread goes on in C. While other threads keep their Ps busy, no
	// thread would run it for milliseconds. Yielding gives the P to a thread that runs it.
	runtime.Gosched()
}

// pauseOperation pauses while the program itself sees to it that it does nothing on the devices.
type pauseOperation struct {
	options   vmm.Options
	discarded []string // more tags, whose contents are lost
	importers float64  // seconds to wait for other processes; negative for the default
}

func (o *pauseOperation) run(p *Process, e *vmm.Engine) (uint64, error) {
	options := o.options
	if len(o.discarded) > 0 {
		options.Discard, options.Except = true, options.Tags
		options.Tags = slices.Concat(options.Tags, o.discarded)
	}
	if o.importers >= 0 {
		options.Importers = seconds(C.double(o.importers))
	}
	defer e.ForgetLive(options.Tags) // even where it is refused before the engine hears of it
	return p.pauseUngated(e, options, bool(C.region_config.pause_force))
}

// gatedPauseOperation pauses after stopping the program's threads.
type gatedPauseOperation struct {
	options vmm.Options
	timeout time.Duration // for the threads to stop, and the devices to be idle
}

func (o *gatedPauseOperation) run(p *Process, e *vmm.Engine) (uint64, error) {
	defer e.ForgetLive(o.options.Tags)
	how := gating{force: bool(C.region_config.pause_force), idle: notIdle}
	return p.pauseGated(e, o.options, o.timeout, how)
}

// prepareOperation prepares a pause, and waits for the preparation.
type prepareOperation struct{ tags []string }

func (o *prepareOperation) run(_ *Process, e *vmm.Engine) (uint64, error) {
	return 0, e.Prepare(o.tags)()
}

// trimOperation gives unused memory back.
type trimOperation struct{}

func (trimOperation) run(_ *Process, e *vmm.Engine) (uint64, error) {
	e.Trim()
	return 0, nil
}

// serveOperation makes the process listen on its socket.
type serveOperation struct{}

func (serveOperation) run(p *Process, _ *vmm.Engine) (uint64, error) { return 0, p.socket.Serve() }

// closeOperation unmaps memory of another process.
type closeOperation struct{ address uintptr }

func (o *closeOperation) run(_ *Process, e *vmm.Engine) (uint64, error) {
	return 0, e.Shared().Close(o.address, state().Capturing)
}

// transitionOf returns the options of a pause or a resume.
func transitionOf(o *C.struct_operation) vmm.Options {
	options := optionsOf(&o.settings)
	options.Tags, options.Since = texts(o.transition.tags), uint64(o.transition.since)
	return options
}

// optionsOf returns the options that the process's settings give.
func optionsOf(settings *C.struct_operation_settings) vmm.Options {
	return vmm.Options{
		RetainBackup: bool(settings.retain_cpu_backup),
		Capturing:    state().Capturing,
		DiskDir:      C.GoString(settings.disk_dir),
		DiskSetting:  C.GoString(settings.disk_setting),
		ExtentBytes:  uint64(C.region_config.extent_bytes),
		Verify:       bool(C.region_config.verify),
		Poison:       bool(C.region_config.poison),
		Importers:    pauseWait,
	}
}

// texts reads a list that ends with NULL. It returns nil where there is no list.
func texts(list **C.char) []string {
	if list == nil {
		return nil
	}
	all := []string{}
	for ; *list != nil; list = (**C.char)(unsafe.Add(unsafe.Pointer(list), unsafe.Sizeof(list))) {
		all = append(all, C.GoString(*list))
	}
	return all
}
