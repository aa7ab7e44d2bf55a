package vmm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tms/internal/aid/readable"
	"tms/vmm/stats"
)

// reserve notes memory that is about to be made, if the limit leaves room for it. A limit of 0 is no limit. The caller
// gives the request's number to answered when the memory counts in has, or could not be made. The caller holds the
// engine's lock.
func (d *device) reserve(size, limit uint64) (request uint64, err error) {
	if has := d.has + d.making; limit > 0 && has+size > limit {
		return 0, fmt.Errorf("%w: it has %s of %s", ErrLimit, readable.Bytes(has), readable.Bytes(limit))
	}
	d.making += size
	d.requests++
	d.unanswered = append(d.unanswered, d.requests)
	return d.requests, nil
}

// answered ends what reserve has begun. The caller holds the engine's lock.
func (d *device) answered(request, size uint64) {
	d.making -= size
	at := slices.Index(d.unanswered, request)
	d.unanswered = slices.Delete(d.unanswered, at, at+1)
}

// noteRefused notes that a program wanted memory in vain. It counts what the limit refused, and says so once for a
// device: a program often reports CUDA's code alone.
func (e *Engine) noteRefused(d *device, size uint64, err error) {
	e.mu.Lock()
	if isShort(err) && size <= d.total {
		d.most = max(d.most, d.has+size)
	}
	if !errors.Is(err, ErrLimit) {
		e.mu.Unlock()
		return
	}
	d.refused++
	first := d.refused == 1
	e.mu.Unlock()
	if first {
		e.process.Warn(err.Error() + " (said once; tms ps counts the others)")
	}
}

// Has returns how many bytes of a device count for the program's limit, paused or not.
func (r Records) Has(ordinal int) uint64 {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	if d := r.engine.devices[ordinal]; d != nil {
		return d.has + d.making
	}
	return 0
}

// HasBy is Has by NVML's UUID. NVML names a part of a GPU by a UUID of its own, and CUDA shows a program one part alone.
func (r Records) HasBy(uuid string) uint64 {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	part := strings.HasPrefix(uuid, "MIG-") && len(r.engine.devices) == 1
	for _, d := range r.engine.devices {
		if d.uuid == uuid || part {
			return d.has + d.making
		}
	}
	return 0
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
