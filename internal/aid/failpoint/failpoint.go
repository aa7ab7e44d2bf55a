// Package failpoint lets tests fail this library's calls to the operating system and to the CUDA driver: each first
// asks Err. With no function set, that is one atomic load.
package failpoint

import "sync/atomic"

var function atomic.Pointer[func(call string) error]

// Set makes every call first ask f, by the call's name and on the goroutine that makes it. If f returns an error, the
// call is not made and fails with that. With nil no call asks. f must be safe for use by many threads.
func Set(f func(call string) error) {
	if f == nil {
		function.Store(nil)
		return
	}
	function.Store(&f)
}

// Err returns the error with which a call must fail, or nil if the call is to be made.
func Err(call string) error {
	f := function.Load()
	if f == nil {
		return nil
	}
	return (*f)(call)
}
