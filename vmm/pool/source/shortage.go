package source

import (
	"errors"
	"fmt"

	"tms/internal/readable"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
)

// shortage is a pool.ErrOutOfMemory with the device's figures.
type shortage struct {
	words string
	cause error
}

func (s *shortage) Error() string { return s.words }

func (s *shortage) Unwrap() []error { return []error{pool.ErrOutOfMemory, s.cause} }

func short(err error) bool {
	return errors.Is(err, cuda.OutOfMemory) || errors.Is(err, vmm.ErrMargin) || errors.Is(err, vmm.ErrTooLarge)
}

// outOfMemory turns the failure to get a segment into a pool.ErrOutOfMemory if memory was short.
func (d *device) outOfMemory(size, margin uint64, err error) error {
	if !short(err) {
		return err
	}
	words := fmt.Sprintf("%v: a segment of %s on device %d", pool.ErrOutOfMemory, readable.Bytes(size), d.ordinal)
	if free, total, failed := d.Memory(); failed == nil {
		words += fmt.Sprintf(", which has %s free of %s", readable.Bytes(free), readable.Bytes(total))
	}
	if errors.Is(err, vmm.ErrMargin) {
		words += fmt.Sprintf(" and must keep a margin of %s", readable.Bytes(margin))
	}
	return &shortage{words, err}
}
