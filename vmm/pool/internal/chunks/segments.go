package chunks

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Segment is memory that the source gave in one call, or a region: several that touch and were joined. Chunks tile it.
type Segment struct {
	Address uintptr
	Size    uint64
	First   Handle // the chunk at its start, whose handle joining keeps, or None once joined to the segment below
}

func (s Segment) end() uintptr { return s.Address + uintptr(s.Size) }

// Regions returns all regions by address.
func (t *Table[T]) Regions() []Segment {
	regions := make([]Segment, 0, len(t.segments))
	for _, s := range t.segments {
		if s.First == None {
			regions[len(regions)-1].Size += s.Size
			continue
		}
		regions = append(regions, s)
	}
	return regions
}

// Grow asks the source for a segment and returns it as one free chunk. Errors: the source's.
func (t *Table[T]) Grow(size uint64) (Handle, error) {
	address, err := t.Allocate(size)
	if err != nil {
		return None, err
	}
	h := t.fresh()
	t.chunks[h] = Chunk[T]{Address: address, Size: size}
	i, _ := t.segment(address)
	t.segments = slices.Insert(t.segments, i, Segment{address, size, h})
	return h, nil
}

func (t *Table[T]) segment(address uintptr) (int, bool) {
	return slices.BinarySearchFunc(t.segments, address, func(s Segment, address uintptr) int {
		return cmp.Compare(s.Address, address)
	})
}

// Connect joins a new segment, which is one chunk, to the regions that it touches, if joined allows it.
func (t *Table[T]) Connect(h Handle, joined func(below, above uintptr) bool) {
	i, _ := t.segment(t.chunks[h].Address)
	own := t.segments[i]
	if i+1 < len(t.segments) {
		if above := &t.segments[i+1]; own.end() == above.Address && joined(own.Address, above.Address) {
			t.link(h, above.First)
			above.First = None
		}
	}
	if i == 0 || t.segments[i-1].end() != own.Address || !joined(t.segments[i-1].Address, own.Address) {
		return
	}
	below := i - 1
	for t.segments[below].First == None {
		below--
	}
	last := t.segments[below].First
	for t.chunks[last].Next != None {
		last = t.chunks[last].Next
	}
	t.link(last, h)
	t.segments[i].First = None
}

func (t *Table[T]) giveBack(address uintptr, size uint64) error {
	if err := t.Free(address, size); err != nil {
		return fmt.Errorf("%s pool: giving back the segment of %d bytes at %#x: %w", t.Stats().Kind, size, address, err)
	}
	return nil
}

// ReturnWhole gives a segment back that is one chunk, taken or free, and not in the ledger. Errors: the source's; then
// nothing has changed.
func (t *Table[T]) ReturnWhole(h Handle) error {
	c := &t.chunks[h]
	if err := t.giveBack(c.Address, c.Size); err != nil {
		return err
	}
	i, _ := t.segment(c.Address)
	t.segments = slices.Delete(t.segments, i, i+1)
	t.drop(h)
	return nil
}

// start returns the chunk that segment i begins in, and whether the segment is idle: then that chunk covers it, because
// free neighbours are joined. below is the chunk that the segment below begins in.
func (t *Table[T]) start(i int, below Handle) (h Handle, idle bool) {
	s := t.segments[i]
	if h = below; s.First != None {
		h = s.First
	}
	for t.chunks[h].End() <= s.Address {
		h = t.chunks[h].Next
	}
	return h, t.IsFree(h) && t.chunks[h].End() >= s.end()
}

// Idle returns the bytes of the segments in which nothing is taken.
func (t *Table[T]) Idle() (bytes uint64) {
	h, idle := None, false
	for i, s := range t.segments {
		if h, idle = t.start(i, h); idle {
			bytes += s.Size
		}
	}
	return bytes
}

// GiveBack gives every segment in which nothing is taken back to the source. It hands each free chunk that lies in one
// to forget, and the chunk's rest in other segments to list. A segment that the source refuses stays. Errors: the
// source's.
func (t *Table[T]) GiveBack(forget, list func(Handle)) (err error) {
	h, idle := None, false
	for i, s := range t.segments {
		if h, idle = t.start(i, h); !idle {
			continue
		}
		if refused := t.giveBack(s.Address, s.Size); refused != nil {
			err = errors.Join(err, refused)
			continue
		}
		t.segments[i].Size = 0
		forget(h)
		h = t.cut(h, s, list)
		if i+1 < len(t.segments) && t.segments[i+1].First == None {
			t.segments[i+1].First = h
		}
	}
	t.segments = slices.DeleteFunc(t.segments, func(s Segment) bool { return s.Size == 0 })
	return err
}

// cut takes a segment out of the free chunk that covers it, and returns the chunk above, or None.
func (t *Table[T]) cut(h Handle, s Segment, list func(Handle)) Handle {
	if c := t.chunks[h]; c.Address < s.Address {
		below := h
		h = t.Split(below, uint64(s.Address-c.Address))
		list(below)
	}
	if c := t.chunks[h]; c.Size > s.Size {
		list(t.Split(h, s.Size))
	}
	below, above := t.chunks[h].Previous, t.chunks[h].Next
	t.link(below, None)
	t.link(None, above)
	t.drop(h)
	return above
}
