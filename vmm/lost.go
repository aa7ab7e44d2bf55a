package vmm

import (
	"errors"
	"fmt"

	"tms/vmm/backup/disk"
)

// named adds to an error about lost contents whose they are.
func (b *batch) named(err error) error {
	var lost *disk.Lost
	if !errors.As(err, &lost) {
		return err
	}
	for _, s := range b.segments {
		if lost.Address-b.span(s).Address < uintptr(s.length()) {
			return fmt.Errorf("tag %q, %d bytes at %#x: %w", s.tag.name, s.size, s.address, err)
		}
	}
	return err
}
