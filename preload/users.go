package main

// #include "shim.h"
import "C"

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"tms/internal/aid/readable"
)

// gateUser is what the gate knows of a thread's calls.
type gateUser C.struct_gate_user

// gateUsers calls look with each thread that was ever past the gate, until look returns false.
func gateUsers(look func(gateUser) bool) {
	var cursor unsafe.Pointer
	var user C.struct_gate_user
	for bool(C.gate_look(&cursor, &user)) && look(gateUser(user)) {
	}
}

// findInside returns a thread that gives a device work now, or nil; with letIn only a thread that the gate has let in.
func findInside(letIn bool) *gateUser {
	for user := range gateUsers {
		if bool(user.works && user.lives) && !(letIn && bool(user.passes)) {
			return &user
		}
	}
	return nil
}

// beginsCapture reports whether a thread had passed the gate to begin a capture, and that has not begun yet.
func beginsCapture() bool {
	for user := range gateUsers {
		if user.works && user.captures && user.lives {
			return true
		}
	}
	return false
}

// function returns the name of the call.
func (u gateUser) function() string { return C.GoString(u.call) }

// name returns the thread's number, and its name while it lives.
func (u gateUser) name() string {
	if !u.lives {
		return fmt.Sprintf("%d, which has ended", u.thread)
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/comm", u.thread))
	if err != nil {
		return fmt.Sprint(u.thread)
	}
	return fmt.Sprintf("%d (%s)", u.thread, readable.Printable(strings.TrimSpace(string(name))))
}

const mostBlamed = 4 // threads that an error names

// blamed returns the error for a device that is not idle in time, with the last work of each thread. The driver is not
// asked which of their streams is busy: a thread may have destroyed one since.
func blamed(device int, timeout time.Duration) error {
	var last []string
	for user := range gateUsers {
		stream := "a default stream"
		if user.stream > 2 {
			stream = fmt.Sprintf("stream %#x", user.stream)
		}
		if len(last) < mostBlamed {
			last = append(last, fmt.Sprintf("%s to %s, by thread %s", user.function(), stream, user.name()))
		}
	}
	return late("device %d has not finished within %v; the last work given was %s", device, timeout,
		cmp.Or(strings.Join(last, "; "), "not seen"))
}
