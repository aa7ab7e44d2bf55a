// Package checksum tells whether a set of the keeper still holds what was published. A set has a file that goes with it
// from place to place: its manifest, and behind that random keys and the hash of each block under them (vmm/digest).
package checksum

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/readable"
	"tms/vmm/cuda"
	"tms/vmm/digest"
)

// Hash hashes a chunk, block by block.
type Hash func(chunk control.KeptChunk, keys *digest.Keys) ([]digest.Sum, error)

// Change is a part of a chunk that is not as it was published.
type Change struct {
	Chunk   int      `json:"chunk"`
	Offset  uint64   `json:"offset"`
	Bytes   uint64   `json:"bytes"`
	Tensors []string `json:"tensors"` // that have bytes there; none: the manifest is not of the Python package
}

// Seal returns the file of a set. The keys are zero if the driver cannot hash.
func Seal(manifest []byte, chunks []control.KeptChunk, hash Hash) ([]byte, error) {
	keys, sums := digest.NewKeys(), make([]digest.Sum, 0, blocks(chunks...))
	for _, chunk := range chunks {
		of, err := hash(chunk, &keys)
		if errors.Is(err, cuda.NotSupported) {
			keys, of, err = digest.Keys{}, make([]digest.Sum, blocks(chunk)), nil
		}
		if err != nil {
			return nil, err
		}
		sums = append(sums, of...)
	}
	file, err := binary.Append(slices.Clip(manifest), binary.LittleEndian, keys)
	if err == nil {
		file, err = binary.Append(file, binary.LittleEndian, sums)
	}
	return file, err
}

// Read returns the contents of a set's file, whose position belongs to others.
func Read(descriptor int) ([]byte, error) {
	var state unix.Stat_t
	if err := unix.Fstat(descriptor, &state); err != nil {
		return nil, err
	}
	file := make([]byte, state.Size)
	n, err := unix.Pread(descriptor, file, 0)
	return file[:max(0, n)], err
}

// Manifest returns the first part of a set's file.
func Manifest(file []byte, chunks []control.KeptChunk) ([]byte, error) {
	size := len(file) - binary.Size(digest.Keys{}) - blocks(chunks...)*binary.Size(digest.Sum{})
	if size < 0 {
		return nil, cuda.Refuse(cuda.NotSupported, "another version of tms has published it; publish it again")
	}
	return file[:size:size], nil
}

// Verify compares a set with its file. Errors: cuda.IllegalState, with the changes; cuda.NotSupported, if it was never
// hashed; those of hash.
func Verify(file []byte, chunks []control.KeptChunk, hash Hash) (changes []Change, err error) {
	manifest, err := Manifest(file, chunks)
	if err != nil {
		return nil, err
	}
	var keys digest.Keys
	sums := make([]digest.Sum, blocks(chunks...))
	n, err := binary.Decode(file[len(manifest):], binary.LittleEndian, &keys)
	if err == nil {
		_, err = binary.Decode(file[len(manifest)+n:], binary.LittleEndian, sums)
	}
	if err != nil {
		return nil, err
	}
	if keys == (digest.Keys{}) {
		return nil, cuda.Refuse(cuda.NotSupported, "it was published without hashes, which need CUDA 12.0")
	}
	for i, chunk := range chunks {
		now, err := hash(chunk, &keys)
		if err != nil {
			return nil, err
		}
		for block, sum := range now {
			offset := uint64(block) * digest.BlockSize
			if sum == sums[block] {
				continue
			}
			last := len(changes) - 1
			if last < 0 || changes[last].Chunk != i || changes[last].Offset+changes[last].Bytes != offset {
				changes = append(changes, Change{Chunk: i, Offset: offset})
				last++
			}
			changes[last].Bytes += min(digest.BlockSize, chunk.Bytes-offset)
		}
		sums = sums[len(now):]
	}
	return changes, refuse(changes, manifest)
}

func blocks(chunks ...control.KeptChunk) (count int) {
	for _, chunk := range chunks {
		count += int((chunk.Bytes + digest.BlockSize - 1) / digest.BlockSize)
	}
	return count
}

// refuse names the tensors in which changes lie, if there are any.
func refuse(changes []Change, manifest []byte) error {
	if len(changes) == 0 {
		return nil
	}
	var python struct {
		Tensors map[string]struct {
			Chunk         int
			Offset, Bytes uint64
		}
	}
	_ = json.Unmarshal(manifest, &python) // a C program writes what it likes
	var differ uint64
	where := map[string]bool{}
	for i := range changes {
		c := &changes[i]
		differ += c.Bytes
		c.Tensors = []string{}
		for name, t := range python.Tensors {
			if t.Chunk == c.Chunk && t.Offset < c.Offset+c.Bytes && c.Offset < t.Offset+t.Bytes {
				c.Tensors = append(c.Tensors, name)
				where[name] = true
			}
		}
		slices.Sort(c.Tensors)
	}
	names, more := slices.Sorted(maps.Keys(where)), ""
	if len(names) == 0 {
		names = []string{fmt.Sprintf("chunk %d at byte %d", changes[0].Chunk, changes[0].Offset)}
	}
	if len(names) > 5 {
		names, more = names[:5], fmt.Sprintf(" and %d more", len(names)-5)
	}
	return cuda.Refuse(cuda.IllegalState, "its contents have changed: %s are not as published, in %s%s; drop it "+
		"(tms kept drop) and publish it again", readable.Bytes(differ), readable.Printable(strings.Join(names, ", ")), more)
}
