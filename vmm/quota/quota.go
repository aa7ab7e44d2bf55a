// Package quota counts what a process has of a device's memory, and refuses what would exceed its limit, or leave too
// little for others.
package quota

import (
	"fmt"
	"slices"
	"sync"

	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

var (
	// ErrMargin: other programs would have too little.
	ErrMargin = cuda.Refuse(cuda.OutOfMemory, "the allocation would leave less than the memory margin free")

	// ErrLimit: the process would have too much.
	ErrLimit = cuda.Refuse(cuda.OutOfMemory, "the allocation would exceed what the process may have on the device: "+
		"free memory, or start the program with a higher limit (--limit of tms run, TMS_LIMIT_BYTES)")
)

// Device is a device's memory, in bytes. The owner's lock is held in every call but WithinMargin.
type Device struct {
	Has     uint64 // what the process has, or a resume would take
	Most    uint64 // the most that the process had, or wanted in vain
	Refused uint64 // allocations that the limit refused

	making     uint64   // what the driver is being asked for
	requests   uint64   // for memory so far, which number them
	unanswered []uint64 // those that the driver has, the oldest first

	driver             *cuda.Driver
	context            cuda.Context
	granularity, total uint64
	margins            sync.Mutex // held from a look at what is free until the memory is taken
}

// New returns a device of which the process has nothing yet, with its primary context.
func New(driver *cuda.Driver, context cuda.Context, granularity, total uint64) *Device {
	return &Device{driver: driver, context: context, granularity: granularity, total: total}
}

// Gain notes memory that the process has from now on.
func (d *Device) Gain(bytes uint64) {
	d.Has += bytes
	d.Most = max(d.Most, d.Has)
}

// Promised returns what the process has, and what it is about to have.
func (d *Device) Promised() uint64 { return d.Has + d.making }

// Reserve notes memory that is about to be made, if the limit leaves room for it. A limit of 0 is no limit. The caller
// gives the request's number to Answered when the memory counts in Has, or could not be made.
func (d *Device) Reserve(size, limit uint64) (request uint64, err error) {
	if has := d.Promised(); limit > 0 && has+size > limit {
		return 0, fmt.Errorf("%w: it has %s of %s", ErrLimit, readable.Bytes(has), readable.Bytes(limit))
	}
	d.making += size
	d.requests++
	d.unanswered = append(d.unanswered, d.requests)
	return d.requests, nil
}

// Answered ends what Reserve has begun.
func (d *Device) Answered(request, size uint64) {
	d.making -= size
	at := slices.Index(d.unanswered, request)
	d.unanswered = slices.Delete(d.unanswered, at, at+1)
}

// Last returns the number of the last request.
func (d *Device) Last() uint64 { return d.requests }

// Waits reports whether a request, or one before it, has no answer yet.
func (d *Device) Waits(request uint64) bool {
	return len(d.unanswered) > 0 && d.unanswered[0] <= request
}

// Need is memory that is to be taken from a device.
type Need struct {
	Size      uint64 // which is taken as whole granules
	Margin    uint64 // bytes that must stay free
	Reserve   bool   // stats.Reserve must stay free, too
	Capturing bool   // a stream is being captured
}

// WithinMargin takes memory if that leaves the margin, even while a stream is being captured. One thread at a time
// looks and takes.
func (d *Device) WithinMargin(n Need, take func() error) error {
	if n.Capturing {
		n.Capturing = false
		return d.driver.Relaxed(func() error { return d.WithinMargin(n, take) })
	}
	if n.Reserve {
		n.Margin = max(n.Margin, stats.Reserve(d.total))
	}
	if n.Margin == 0 {
		return take()
	}
	d.margins.Lock()
	defer d.margins.Unlock()
	size := (n.Size + d.granularity - 1) / d.granularity * d.granularity
	free, err := d.driver.FreeBytes(d.context)
	if err != nil {
		return err
	}
	if free < size || free-size < n.Margin {
		return fmt.Errorf("%w: %s free, margin %s", ErrMargin, readable.Bytes(free), readable.Bytes(n.Margin))
	}
	return take()
}
