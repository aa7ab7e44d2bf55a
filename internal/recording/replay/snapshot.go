package replay

import (
	"cmp"
	"io"
	"maps"
	"slices"

	"tms/vmm/pool"
	"tms/vmm/pool/caching"
)

// Snapshot has what a pool held at the end of a trace and its history, in the form of PyTorch's own allocator.
// (torch.cuda.memory._snapshot; pytorch.org/memory_viz)
type Snapshot struct {
	events   []happening
	segments map[uintptr]heldSegment // by address
	live     []observed              // by address
	stream   pool.Stream             // of the segments made now; 0 for a kind that ignores streams
}

type heldSegment struct {
	size   uint64
	stream pool.Stream
	small  bool
}

type happening struct {
	action  string
	address uintptr
	size    uint64
	stream  pool.Stream
	free    uint64 // for oom: bytes that the source had left
}

// note adds an event; on a nil snapshot it does nothing.
func (s *Snapshot) note(action string, address uintptr, size uint64, stream pool.Stream, free uint64) {
	if s != nil {
		s.events = append(s.events, happening{action, address, size, stream, free})
	}
}

func (s *Snapshot) segment(address uintptr, size uint64, held bool) {
	if held {
		s.segments[address] = heldSegment{size: size, stream: s.stream}
		s.note("segment_alloc", address, size, s.stream, 0)
		return
	}
	s.note("segment_free", address, size, s.segments[address].stream, 0)
	delete(s.segments, address)
}

// end takes the live blocks. If the pool has a snapshot, end asks it which segments are for small blocks.
func (s *Snapshot) end(p pool.Pool, blocks []observed) {
	s.live = slices.DeleteFunc(slices.Clone(blocks), func(b observed) bool { return b.Size == 0 })
	slices.SortFunc(s.live, func(a, b observed) int { return cmp.Compare(a.Address, b.Address) })
	if of, ok := p.(*caching.Pool); ok {
		for _, found := range of.Snapshot().([]caching.Segment) {
			held := s.segments[found.Address]
			held.small = found.Type == "small"
			s.segments[found.Address] = held
		}
	}
}

// Write writes the snapshot as a pickle, like torch.cuda.memory._dump_snapshot, with sizes in bytes. Frames are empty,
// because a trace has no stacks. Errors: the writer's.
func (s *Snapshot) Write(to io.Writer) error {
	return writePickle(to, dict{
		"segments", s.tiled(),
		"device_traces", list{1, func(int) any {
			return list{len(s.events), func(i int) any {
				e := s.events[i]
				d := dict{"action", e.action, "addr", uint64(e.address), "size", e.size, "stream", uint64(e.stream),
					"frames", list{}}
				if e.action == "oom" {
					d = append(d, "device_free", e.free)
				}
				return d
			}}
		}},
	})
}

// tiled returns the segments by address, each with blocks that tile it. It joins segments that share a block.
func (s *Snapshot) tiled() list {
	addresses := slices.Sorted(maps.Keys(s.segments))
	blocks := s.live
	var all []any
	for i := 0; i < len(addresses); i++ {
		at := addresses[i]
		held := s.segments[at]
		end := at + uintptr(held.size)
		var tiles []any
		var allocated, requested uint64
		tile := func(size, requested uint64, state string) {
			tiles = append(tiles, dict{"size", size, "requested_size", requested, "state", state, "frames", list{}})
		}
		next, stream := at, held.stream
		for ; len(blocks) > 0 && blocks[0].Address < end; blocks = blocks[1:] {
			b := blocks[0]
			for b.Address+uintptr(b.Size) > end {
				i++
				end += uintptr(s.segments[addresses[i]].size)
			}
			if b.Address > next {
				tile(uint64(b.Address-next), 0, "inactive")
			}
			tile(b.Size, b.requested, "active_allocated")
			next, stream = b.Address+uintptr(b.Size), b.stream
			allocated += b.Size
			requested += b.requested
		}
		if end > next {
			tile(uint64(end-next), 0, "inactive")
		}
		kind := "large"
		if held.small {
			kind = "small"
		}
		all = append(all, dict{"device", uint64(0), "address", uint64(at), "total_size", uint64(end - at),
			"allocated_size", allocated, "active_size", allocated, "requested_size", requested,
			"stream", uint64(stream), "segment_type", kind, "is_expandable", false, "frames", list{}, "blocks",
			listOf(tiles)})
	}
	return listOf(all)
}
