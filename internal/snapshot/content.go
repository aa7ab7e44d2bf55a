package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"tms/internal/aid/directio"
)

// BlockSize is how many bytes of a file one block has; the last one has fewer, but a multiple of directio.Block.
const BlockSize = 2 << 20

// PageBlockSize is how many bytes a block of a process's private memory has at most.
const PageBlockSize = 64 << 10

// Sum is the SHA-256 of a block. The zero Sum stands for a block of zeros, which takes nothing.
type Sum [sha256.Size]byte

func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// MarshalText writes zeros as nothing.
func (s Sum) MarshalText() ([]byte, error) {
	if s == (Sum{}) {
		return nil, nil
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads what MarshalText has written.
func (s *Sum) UnmarshalText(text []byte) error {
	*s = Sum{}
	if len(text) == 0 {
		return nil
	}
	if n, err := hex.Decode(s[:], text[:min(len(text), 2*len(s))]); err != nil || n != len(s) || len(text) != 2*len(s) {
		return fmt.Errorf("%q is not the SHA-256 of a block", text)
	}
	return nil
}

// Content is what a file has.
type Content struct {
	Size   int64 `json:"size"`
	Blocks []Sum `json:"blocks"` // in order
	// Lengths are the blocks' own; without them a block has BlockSize bytes, and the last one the rest.
	Lengths []int64 `json:"lengths,omitempty"`
	// Places are where the blocks are in packs; without them a block is a file of its own.
	Places []Place `json:"places,omitempty"`
}

// Bytes returns how many bytes are not in blocks of zeros.
func (c Content) Bytes() (bytes int64) {
	for i, sum := range c.Blocks {
		if sum != (Sum{}) {
			bytes += c.length(i)
		}
	}
	return bytes
}

// valid reports whether there is a block for all of its size, and no other, and where each is, in one of some packs.
func (c Content) valid(packs int) bool {
	if c.Lengths == nil {
		return c.Size >= 0 && len(c.Blocks) == blocksOf(c.Size) && c.Places == nil
	}
	left := c.Size
	for _, length := range c.Lengths {
		if left -= length; length <= 0 || length > BlockSize || left < 0 {
			return false
		}
	}
	return left == 0 && len(c.Blocks) == len(c.Lengths) && (c.Places == nil || c.placed(packs))
}

// placed reports whether each block that is not of zeros can be in one of the packs.
func (c Content) placed(packs int) bool {
	if len(c.Places) != len(c.Blocks) {
		return false
	}
	for i, place := range c.Places {
		is := place[0] >= 0 && place[0] < int64(packs) && place[1] >= 0 && place[1] < 1<<60 && c.length(i)%directio.Block == 0
		if !is && c.Blocks[i] != (Sum{}) {
			return false
		}
	}
	return true
}

func blocksOf(size int64) int { return int((size + BlockSize - 1) / BlockSize) }

// length returns how many bytes of the file a block has.
func (c Content) length(block int) int64 {
	if c.Lengths != nil {
		return c.Lengths[block]
	}
	return min(BlockSize, c.Size-int64(block)*BlockSize)
}

// offsets returns where each block is in the file.
func (c Content) offsets() []int64 {
	offsets := make([]int64, len(c.Blocks))
	for i := 1; i < len(offsets); i++ {
		offsets[i] = offsets[i-1] + c.length(i-1)
	}
	return offsets
}

// run is a number of blocks that follow each other, of at most BlockSize together.
type run struct {
	first, end int
	length     int64
}

// runs cuts the content into runs. with reports whether a block may be in the run of the block before it.
func (c Content) runs(with func(block int) bool) (all []run) {
	for i := range c.Blocks {
		length := c.length(i)
		if last := len(all) - 1; i > 0 && with(i) && all[last].length+length <= BlockSize {
			all[last].end, all[last].length = i+1, all[last].length+length
		} else {
			all = append(all, run{i, i + 1, length})
		}
	}
	return all
}

// inTurn reports whether a block is where the block before it ends, in one pack.
func (c Content) inTurn(block int) bool {
	if c.Places == nil || c.Blocks[block] == (Sum{}) || c.Blocks[block-1] == (Sum{}) {
		return false
	}
	here, before := c.Places[block], c.Places[block-1]
	return here == Place{before[0], before[1] + c.length(block-1)}
}
