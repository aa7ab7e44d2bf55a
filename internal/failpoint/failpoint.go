// Package failpoint lets tests fail the calls that this library makes of the operating system and of the
// CUDA driver: each asks Err first. With no function set that is one atomic load.
package failpoint

import "sync/atomic"

var function atomic.Pointer[func(call string) error]

// Set has f asked before every call, by name, on the goroutine that makes it: an error from f is what the
// call then fails with, without being made. nil: none is asked. f must be safe for use by many threads.
func Set(f func(call string) error) {
	if f == nil {
		function.Store(nil)
		return
	}
	function.Store(&f)
}

// Err returns the error with which a call must fail; nil: make the call.
func Err(call string) error {
	f := function.Load()
	if f == nil {
		return nil
	}
	return (*f)(call)
}
