package vmm

import (
	"fmt"

	"tms/internal/aid/readable"
	"tms/vmm/stats"
)

// reserve notes memory that is about to be made, if the limit leaves room for it. A limit of 0 is no limit. The caller
// takes it from making when the memory counts in has, or could not be made. The caller holds the engine's lock.
func (d *device) reserve(size, limit uint64) error {
	if has := d.has + d.making; limit > 0 && has+size > limit {
		return fmt.Errorf("%w: %s of %s", ErrLimit, readable.Bytes(has), readable.Bytes(limit))
	}
	d.making += size
	return nil
}

// withinMargin takes whole granules of a device's memory if that leaves the margin, even while a stream is being
// captured. One thread at a time looks and takes.
func (e *Engine) withinMargin(d *device, r Request, take func() error) error {
	if r.Capturing {
		r.Capturing = false
		return e.driver.Relaxed(func() error { return e.withinMargin(d, r, take) })
	}
	if r.Reserve {
		r.Margin = max(r.Margin, stats.Reserve(d.total))
	}
	if r.Margin == 0 {
		return take()
	}
	d.margins.Lock()
	defer d.margins.Unlock()
	size := (r.Size + d.granularity - 1) / d.granularity * d.granularity
	free, err := d.freeBytes()
	if err != nil {
		return err
	}
	if free < size || free-size < r.Margin {
		return fmt.Errorf("%w: %s free, margin %s", ErrMargin, readable.Bytes(free), readable.Bytes(r.Margin))
	}
	return take()
}
