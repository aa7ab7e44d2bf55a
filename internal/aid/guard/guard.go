// Package guard keeps panics from leaving the library: an uncaught panic ends the host's process, whatever goroutine it
// comes from. So every goroutine of the engine runs its work through Call.
package guard

import (
	"cmp"
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

// All runs f through Call for every item at once, and returns the first error, after all have ended.
func All[T any](items []T, f func(T) error) error {
	errs := make(chan error, len(items))
	for _, item := range items {
		go func() { errs <- Call(func() error { return f(item) }) }()
	}
	var first error
	for range items {
		first = cmp.Or(first, <-errs)
	}
	return first
}
