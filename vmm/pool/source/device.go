// Package source has the sources of pools in a process: the engine's pausable segments, and CUDA's and host memory.
package source

import (
	"errors"
	"fmt"

	"tms/internal/aid/readable"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
)

// device makes a source a pool.Memory and a pool.Events.
type device struct {
	driver  *cuda.Driver
	ordinal int
	context cuda.Context // the primary one, retained for good
	spare   []cuda.Event
}

func newDevice(driver *cuda.Driver, ordinal int) (device, error) {
	handle, err := driver.DeviceGet(ordinal)
	if err != nil {
		return device{}, err
	}
	context, err := driver.DevicePrimaryCtxRetain(handle)
	return device{driver: driver, ordinal: ordinal, context: context}, err
}

// Ordinal returns the device's CUDA ordinal.
func (d *device) Ordinal() int { return d.ordinal }

// Memory is pool.Memory.Memory. (cuMemGetInfo)
func (d *device) Memory() (free, total uint64, err error) {
	err = d.driver.With(d.context, func() error {
		free, total, err = d.driver.MemGetInfo()
		return err
	})
	return free, total, err
}

// Record is pool.Events.Record. (cuEventCreate, cuEventRecord)
func (d *device) Record(stream pool.Stream) (event pool.Event, err error) {
	err = d.driver.With(d.context, func() error {
		var made cuda.Event
		if last := len(d.spare) - 1; last >= 0 {
			made, d.spare = d.spare[last], d.spare[:last]
		} else if made, err = d.driver.EventCreate(); err != nil {
			return err
		}
		if err := d.driver.EventRecord(made, cuda.Stream(stream)); err != nil {
			d.spare = append(d.spare, made)
			return err
		}
		event = pool.Event(made)
		return nil
	})
	return event, err
}

// Query is pool.Events.Query. (cuEventQuery)
func (d *device) Query(event pool.Event) (done bool, err error) {
	err = d.driver.Relaxed(func() error { return d.driver.EventQuery(cuda.Event(event)) })
	if errors.Is(err, cuda.NotReady) {
		return false, nil
	}
	return err == nil, err
}

// Synchronize is pool.Events.Synchronize. (cuEventSynchronize)
func (d *device) Synchronize(event pool.Event) error {
	return d.driver.Relaxed(func() error { return d.driver.EventSynchronize(cuda.Event(event)) })
}

// Destroy is pool.Events.Destroy; the next Record uses it again.
func (d *device) Destroy(event pool.Event) error {
	d.spare = append(d.spare, cuda.Event(event))
	return nil
}

// Close ends the spare events after the pool over the source is gone. (cuEventDestroy)
func (d *device) Close() error {
	var failed error
	for _, event := range d.spare {
		failed = errors.Join(failed, d.driver.EventDestroy(event))
	}
	d.spare = nil
	return failed
}

func short(err error) bool {
	return errors.Is(err, cuda.OutOfMemory) || errors.Is(err, vmm.ErrMargin) || errors.Is(err, vmm.ErrTooLarge) ||
		errors.Is(err, vmm.ErrLimit)
}

// outOfMemory turns the failure to get a segment into a pool.ErrOutOfMemory with the device's figures if memory was
// short.
func (d *device) outOfMemory(size, margin uint64, err error) error {
	if !short(err) {
		return err
	}
	if errors.Is(err, vmm.ErrLimit) { // which has the figures
		return fmt.Errorf("%w: %w", pool.ErrOutOfMemory, err)
	}
	words := fmt.Sprintf(": a segment of %s on device %d", readable.Bytes(size), d.ordinal)
	if free, total, failed := d.Memory(); failed == nil {
		words += fmt.Sprintf(", which has %s free of %s", readable.Bytes(free), readable.Bytes(total))
	}
	if errors.Is(err, vmm.ErrMargin) {
		words += fmt.Sprintf(" and must keep a margin of %s", readable.Bytes(margin))
	}
	return fmt.Errorf("%w%s%.0w", pool.ErrOutOfMemory, words, err)
}
