package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

// valid reports whether there is a block for all of its size, and no other.
func (c Content) valid() bool {
	if c.Lengths == nil {
		return c.Size >= 0 && len(c.Blocks) == blocksOf(c.Size)
	}
	left := c.Size
	for _, length := range c.Lengths {
		if left -= length; length <= 0 || length > BlockSize || left < 0 {
			return false
		}
	}
	return left == 0 && len(c.Blocks) == len(c.Lengths)
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

// cached reports whether the blocks go through the page cache: they are small, and there are many.
func (c Content) cached() bool { return c.Lengths != nil }
