// Package guard keeps panics from leaving the library: one that is not caught ends the host's process,
// from whatever goroutine it comes. So every goroutine of the engine runs its work through Call.
package guard

import (
	"fmt"
	"runtime/debug"
)

// Panic is a defect of this library, as an error.
type Panic struct {
	Value any
	Stack []byte // of the goroutine it happened in
}

func (p *Panic) Error() string {
	return fmt.Sprintf("internal error, please report it: %v", p.Value)
}

// Call runs f; a panic in it becomes an error, a *Panic. So does a fault at any address: one that a caller
// or the driver gave us may be bad.
func Call(f func() error) (err error) {
	debug.SetPanicOnFault(true)
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{value, debug.Stack()}
		}
	}()
	return f()
}
