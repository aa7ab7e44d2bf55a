// Package guard keeps panics from leaving the library: an uncaught panic ends the host's process, whatever goroutine it
// comes from. So every goroutine of the engine runs its work through Call.
package guard

import (
	"fmt"
	"runtime/debug"
)

// Panic is a defect of this library, as an error.
type Panic struct {
	Value any
	Stack []byte // of the goroutine in which it happened
}

func (p *Panic) Error() string {
	return fmt.Sprintf("internal error, please report it: %v", p.Value)
}

// Call runs f; a panic in it becomes an error, a *Panic. So does a fault at any address, because one that a caller or
// the driver gave us may be bad.
func Call(f func() error) (err error) {
	debug.SetPanicOnFault(true)
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{value, debug.Stack()}
		}
	}()
	return f()
}
