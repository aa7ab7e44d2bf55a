package chunks

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Segment is what the source gave at one time.
type Segment struct {
	Address uintptr
	Size    uint64
	First   Handle // the chunk at its start: joining keeps the lower chunk's handle, so it never changes
}

// Segments returns all segments by address; the slice is good until the next Adopt or GiveBack.
func (t *Table) Segments() []Segment { return t.segments }

// Grow asks the source for a segment and returns it as one free chunk. Errors: the source's.
func (t *Table) Grow(size uint64) (Handle, error) {
	address, err := t.Allocate(size)
	if err != nil {
		return None, err
	}
	return t.Adopt(address, size), nil
}

// Adopt makes memory that was had from Allocate a segment of one free chunk.
func (t *Table) Adopt(address uintptr, size uint64) Handle {
	h := t.add(Chunk{Address: address, Size: size})
	i, _ := slices.BinarySearchFunc(t.segments, address, func(s Segment, address uintptr) int {
		return cmp.Compare(s.Address, address)
	})
	t.segments = slices.Insert(t.segments, i, Segment{address, size, h})
	return h
}

// Return gives memory that was had from Allocate back to the source. Errors: the source's.
func (t *Table) Return(address uintptr, size uint64) error {
	if err := t.Free(address, size); err != nil {
		return fmt.Errorf("%s pool: giving back the segment of %d bytes at %#x: %w", t.Stats().Kind, size, address, err)
	}
	return nil
}

func (t *Table) idle(s Segment) bool {
	for h := range t.In(s) {
		if t.chunks[h].Live() {
			return false
		}
	}
	return true
}

// Idle returns how many bytes the segments have in which nothing is live.
func (t *Table) Idle() (bytes uint64) {
	for _, s := range t.segments {
		if t.idle(s) {
			bytes += s.Size
		}
	}
	return bytes
}

// GiveBack returns every segment in which nothing is live to the source, and how many bytes that was.
// Each of their chunks is handed to forget before its handle ends. What the source refuses stays.
// Errors: the source's.
func (t *Table) GiveBack(forget func(Handle)) (bytes uint64, err error) {
	t.segments = slices.DeleteFunc(t.segments, func(s Segment) bool {
		if !t.idle(s) {
			return false
		}
		if refused := t.Return(s.Address, s.Size); refused != nil {
			err = errors.Join(err, refused)
			return false
		}
		for h := range t.In(s) {
			forget(h)
			t.drop(h)
		}
		bytes += s.Size
		return true
	})
	return bytes, err
}
