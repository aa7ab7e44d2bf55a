package chunks

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Segment is memory that the source gave in one call.
type Segment struct {
	Address uintptr
	Size    uint64
	first   Handle // the chunk at its start: joining keeps the lower handle; None: joined to the segment below
}

func (s Segment) end() uintptr { return s.Address + uintptr(s.Size) }

// Region is a segment, or several that touch and were joined. Chunks tile it.
type Region struct {
	Address uintptr
	Size    uint64
	First   Handle
}

// Regions returns all regions by address.
func (t *Table[T]) Regions() []Region {
	regions := make([]Region, 0, len(t.segments))
	for _, s := range t.segments {
		if s.first == None {
			regions[len(regions)-1].Size += s.Size
			continue
		}
		regions = append(regions, Region{s.Address, s.Size, s.first})
	}
	return regions
}

// Grow asks the source for a segment and returns it as one free chunk. Errors: the source's.
func (t *Table[T]) Grow(size uint64) (Handle, error) {
	address, err := t.Allocate(size)
	if err != nil {
		return None, err
	}
	return t.Adopt(address, size), nil
}

// Adopt makes memory from Allocate a segment of one free chunk.
func (t *Table[T]) Adopt(address uintptr, size uint64) Handle {
	h := t.fresh()
	t.chunks[h] = Chunk[T]{Address: address, Size: size}
	i, _ := t.segment(address)
	t.segments = slices.Insert(t.segments, i, Segment{address, size, h})
	return h
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
			t.link(h, above.first)
			above.first = None
		}
	}
	if i == 0 || t.segments[i-1].end() != own.Address || !joined(t.segments[i-1].Address, own.Address) {
		return
	}
	below := i - 1
	for t.segments[below].first == None {
		below--
	}
	last := t.segments[below].first
	for t.chunks[last].Next != None {
		last = t.chunks[last].Next
	}
	t.link(last, h)
	t.segments[i].first = None
}

// Return gives memory from Allocate back to the source. Errors: the source's.
func (t *Table[T]) Return(address uintptr, size uint64) error {
	if err := t.Free(address, size); err != nil {
		return fmt.Errorf("%s pool: giving back the segment of %d bytes at %#x: %w", t.Stats().Kind, size, address, err)
	}
	return nil
}

// ReturnWhole gives a segment that is one chunk back to the source; the chunk ends, even a live one. Errors: the
// source's, after which nothing has changed.
func (t *Table[T]) ReturnWhole(h Handle) error {
	c := &t.chunks[h]
	if err := t.Return(c.Address, c.Size); err != nil {
		return err
	}
	if _, live := t.live.Remove(c.Address); live {
		t.CountFree(c.Requested, c.Size)
	}
	i, _ := t.segment(c.Address)
	t.segments = slices.Delete(t.segments, i, i+1)
	t.drop(h)
	return nil
}

// starts yields the segments by number, with the chunk that each begins in, and whether the segment is idle: then that
// chunk covers it, because free neighbours are joined.
func (t *Table[T]) starts(yield func(i int, h Handle, idle bool) Handle) {
	h := None
	for i := range t.segments {
		s := t.segments[i]
		if s.first != None {
			h = s.first
		}
		for t.chunks[h].End() <= s.Address {
			h = t.chunks[h].Next
		}
		h = yield(i, h, t.IsFree(h) && t.chunks[h].End() >= s.end())
	}
}

// Idle returns the bytes of the segments in which nothing is taken.
func (t *Table[T]) Idle() (bytes uint64) {
	t.starts(func(i int, h Handle, idle bool) Handle {
		if idle {
			bytes += t.segments[i].Size
		}
		return h
	})
	return bytes
}

// GiveBack gives every segment in which nothing is taken back to the source, and returns their bytes. It hands each
// free chunk that lies in one to forget, and the chunk's rest in other segments to list. A segment that the source
// refuses stays. Errors: the source's.
func (t *Table[T]) GiveBack(forget, list func(Handle)) (bytes uint64, err error) {
	t.starts(func(i int, h Handle, idle bool) Handle {
		s := t.segments[i]
		if !idle {
			return h
		}
		if refused := t.Return(s.Address, s.Size); refused != nil {
			err = errors.Join(err, refused)
			return h
		}
		bytes += s.Size
		t.segments[i].Size = 0
		forget(h)
		above := t.cut(h, s, list)
		if i+1 < len(t.segments) && t.segments[i+1].first == None {
			t.segments[i+1].first = above
		}
		return above
	})
	t.segments = slices.DeleteFunc(t.segments, func(s Segment) bool { return s.Size == 0 })
	return bytes, err
}

// cut takes a segment out of the free chunk that covers it, and returns the chunk above; None: there is none.
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
	if below != None {
		t.chunks[below].Next = None
	}
	if above != None {
		t.chunks[above].Previous = None
	}
	t.drop(h)
	return above
}
