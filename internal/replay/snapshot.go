package replay

import (
	"cmp"
	"io"
	"slices"

	"tms/vmm/pool"
	"tms/vmm/pool/caching"
)

// Snapshot is what a pool held at the end of a trace and how it came to that, as PyTorch tells of its own allocator.
// (torch.cuda.memory._snapshot; pytorch.org/memory_viz)
type Snapshot struct {
	events   []happening
	segments map[uintptr]heldSegment
	live     map[uintptr]liveBlock
	stream   pool.Stream // that segments are now made for; 0 of a kind that ignores streams
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
	free    uint64 // bytes that the source had left; of oom
}

type liveBlock struct {
	pool.Block
	requested uint64
	stream    pool.Stream
}

func newSnapshot() *Snapshot {
	return &Snapshot{segments: map[uintptr]heldSegment{}, live: map[uintptr]liveBlock{}}
}

func (s *Snapshot) segment(address uintptr, size uint64, held bool) {
	event := happening{"segment_free", address, size, s.segments[address].stream, 0}
	if held {
		event.action, event.stream = "segment_alloc", s.stream
		s.segments[address] = heldSegment{size: size, stream: s.stream}
	} else {
		delete(s.segments, address)
	}
	s.events = append(s.events, event)
}

// end asks a pool that tells of its segments which of them are for small blocks.
func (s *Snapshot) end(p pool.Pool) {
	of, ok := p.(*caching.Pool)
	if !ok {
		return
	}
	for _, found := range of.Snapshot().([]caching.Segment) {
		held := s.segments[found.Address]
		held.small = found.Type == "small"
		s.segments[found.Address] = held
	}
}

func (s *Snapshot) alloc(b pool.Block, requested uint64, stream pool.Stream) {
	s.live[b.Address] = liveBlock{b, requested, stream}
	s.events = append(s.events, happening{action: "alloc", address: b.Address, size: requested, stream: stream})
}

func (s *Snapshot) free(address uintptr) {
	b := s.live[address]
	delete(s.live, address)
	for _, action := range []string{"free_requested", "free_completed"} {
		s.events = append(s.events, happening{action: action, address: address, size: b.requested, stream: b.stream})
	}
}

func (s *Snapshot) oom(size uint64, stream pool.Stream, free uint64) {
	s.events = append(s.events, happening{action: "oom", size: size, stream: stream, free: free})
}

// Write writes the snapshot as a pickle, as torch.cuda.memory._dump_snapshot does. Sizes are in bytes; nothing has
// frames, as a trace has no stacks. Errors: the writer's.
func (s *Snapshot) Write(to io.Writer) error {
	segments := s.tiled()
	none := list{}
	return writePickle(to, dict{
		"segments", list{len(segments), func(i int) any { return segments[i] }},
		"device_traces", list{1, func(int) any {
			return list{len(s.events), func(i int) any {
				e := s.events[i]
				d := dict{"action", e.action, "addr", uint64(e.address), "size", e.size, "stream", uint64(e.stream), "frames", none}
				if e.action == "oom" {
					d = append(d, "device_free", e.free)
				}
				return d
			}}
		}},
	})
}

// tiled returns the segments by address, each with blocks that tile it. Segments that a block lies across are one.
func (s *Snapshot) tiled() (all []dict) {
	addresses := make([]uintptr, 0, len(s.segments))
	for address := range s.segments {
		addresses = append(addresses, address)
	}
	slices.Sort(addresses)
	blocks := make([]liveBlock, 0, len(s.live))
	for _, b := range s.live {
		blocks = append(blocks, b)
	}
	slices.SortFunc(blocks, func(a, b liveBlock) int { return cmp.Compare(a.Address, b.Address) })

	for i := 0; i < len(addresses); i++ {
		at := addresses[i]
		held := s.segments[at]
		end := at + uintptr(held.size)
		var tiles []dict
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
		all = append(all, dict{"device", 0, "address", uint64(at), "total_size", uint64(end - at),
			"allocated_size", allocated, "active_size", allocated, "requested_size", requested, "stream", uint64(stream),
			"segment_type", kind, "is_expandable", false, "frames", list{},
			"blocks", list{len(tiles), func(i int) any { return tiles[i] }}})
	}
	return all
}
