// Package goruntime wakes the Go runtime inside a host that knows nothing of it, and keeps it from harming the host. It
// has the runtime's start at first need, its threads and memory, and the host's signals (C), and it runs Go code for
// threads of the host and of this library.
//
// Its nouns: a visit is one stay of a thread of the host in Go. The room is what must be free before Go may start or
// allocate: threads, address space and host memory. A fork mark tells a forked child from the process that set the mark.
// A handler is the host's, for a signal that Go has a handler for, too.
package goruntime

/*
#cgo CFLAGS: -std=gnu11 -O2 -I${SRCDIR}/../../region -I${SRCDIR}/../../forward
#cgo LDFLAGS: -lpthread
#include "goruntime.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"tms/internal/aid/guard"
)

var panicked sync.Once

// Run runs f with room on the stack for a fault. A panic becomes an error, because a panic must not unwind into the
// host. Run logs the first one.
func Run(f func() error) error {
	grow(false)
	err := guard.Call(f)
	LogPanic(err)
	return err
}

// LogPanic logs an error that is a panic, the first time.
func LogPanic(err error) {
	var panic *guard.Panic
	if err != nil && errors.As(err, &panic) {
		panicked.Do(func() { Log(fmt.Sprintf("%v\n%s", err, panic.Stack)) })
	}
}

// Hand runs work on another thread, which begins at once: the caller must not wait for a thread.
func Hand(work func()) {
	if short() {
		C.memory_extend()
	}
	go work()
	runtime.Gosched()
}

// Log writes a line on the host's stderr, if descriptor 2 still is that.
func Log(line string) { C.error_log((*C.char)(Terminated(line))) }

// Terminated returns a text with C's zero byte, for the duration of a call. C.CString would end the process when there
// is no memory.
func Terminated(text string) unsafe.Pointer { return unsafe.Pointer(&append([]byte(text), 0)[0]) }

//export tmsAwake
func tmsAwake() {}
