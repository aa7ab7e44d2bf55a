// Package storetest has the process's part in vmm/store, for the tests of that package and of the engine.
package storetest

import (
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"
)

// Descriptors is a store.Descriptors that keeps the descriptors in the test's own process.
type Descriptors struct {
	sync.Mutex
	Kept map[uint64]int
	Full bool // Keep is refused
}

// New returns a Descriptors without any.
func New() *Descriptors { return &Descriptors{Kept: map[uint64]int{}} }

// Keep is store.Descriptors.Keep. Errors: unix.EMFILE while Full is set.
func (d *Descriptors) Keep(descriptor int) (number uint64, err error) {
	d.Lock()
	defer d.Unlock()
	if d.Full {
		return 0, unix.EMFILE
	}
	number = max(1, rand.Uint64())
	d.Kept[number], err = unix.Dup(descriptor)
	return number, err
}

// Copy is store.Descriptors.Copy.
func (d *Descriptors) Copy(number uint64) (int, error) {
	d.Lock()
	defer d.Unlock()
	return unix.Dup(d.Kept[number])
}

// Close is store.Descriptors.Close.
func (d *Descriptors) Close(descriptor int) { _ = unix.Close(descriptor) }

// Drop is store.Descriptors.Drop.
func (d *Descriptors) Drop(number uint64) error {
	d.Lock()
	defer d.Unlock()
	descriptor, has := d.Kept[number]
	if !has {
		return nil
	}
	delete(d.Kept, number)
	return unix.Close(descriptor)
}
