package pool

import (
	"cmp"
	"slices"
)

// Segment is memory that a pool holds from its source, as torch.cuda.memory_snapshot lists it. Sizes are in bytes.
type Segment struct {
	Address   uintptr        `json:"address"`
	Size      uint64         `json:"total_size"`
	Allocated uint64         `json:"allocated_size"` // of blocks that are allocated
	Active    uint64         `json:"active_size"`    // of these, and of freed blocks that streams still use
	Requested uint64         `json:"requested_size"` // of active blocks, as asked for
	Stream    Stream         `json:"stream"`         // that its blocks are for; 0 if the kind ignores streams
	Type      string         `json:"segment_type"`   // small (caching, for blocks up to 1 MiB) or large
	Blocks    []SegmentBlock `json:"blocks"`         // by address, without gaps
}

// SegmentBlock is a part of a Segment.
type SegmentBlock struct {
	Address   uintptr    `json:"address"`
	Size      uint64     `json:"size"`
	Requested uint64     `json:"requested_size"` // 0 for an inactive block
	State     BlockState `json:"state"`
}

// BlockState tells who may use a block.
type BlockState string

// The states, in PyTorch's words.
const (
	Allocated   BlockState = "active_allocated"    // the program
	PendingFree BlockState = "active_pending_free" // streams that had it before it was freed
	Inactive    BlockState = "inactive"            // the pool
)

func (s *Segment) end() uintptr { return s.Address + uintptr(s.Size) }

// Fill puts the blocks in use, in any order, into the segments, which are in the order of their addresses, and makes
// what lies between them inactive blocks. Segments that a block reaches across become one.
func Fill(segments []Segment, blocks []SegmentBlock) []Segment {
	slices.SortFunc(blocks, func(a, b SegmentBlock) int { return cmp.Compare(a.Address, b.Address) })
	filled := make([]Segment, 0, len(segments))
	for i := 0; i < len(segments); i++ {
		s := segments[i]
		at := s.Address
		inactive := func(end uintptr) {
			if end > at {
				s.Blocks = append(s.Blocks, SegmentBlock{Address: at, Size: uint64(end - at), State: Inactive})
			}
		}
		for len(blocks) > 0 && blocks[0].Address < s.end() {
			b := blocks[0]
			blocks = blocks[1:]
			inactive(b.Address)
			s.Blocks = append(s.Blocks, b)
			at = b.Address + uintptr(b.Size)
			for at > s.end() && i+1 < len(segments) {
				i++
				s.Size += segments[i].Size
			}
			s.Active += b.Size
			s.Requested += b.Requested
			if b.State == Allocated {
				s.Allocated += b.Size
			}
		}
		inactive(s.end())
		filled = append(filled, s)
	}
	return filled
}
