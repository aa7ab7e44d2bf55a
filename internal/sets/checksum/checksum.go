// Package checksum reports whether a set of the keeper still holds what was published. Each set has a file, which goes
// with it from place to place: its manifest, then random keys, then the hash of each block under them (vmm/digest).
package checksum

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/vmm/cuda"
	"tms/vmm/digest"
)

// File is the file of a set.
type File struct {
	All      []byte // the manifest's size, as 8 bytes; it; keys and hashes, unless the driver could not hash
	Manifest []byte
}

// Hashed reports whether the file has hashes. Without them the files of two sets with the same manifest are equal.
func (f File) Hashed() bool { return len(f.All) > 8+len(f.Manifest) }

// Hash hashes a chunk, block by block.
type Hash func(chunk control.KeptChunk, keys *digest.Keys) ([]digest.Sum, error)

// Change is a block of a chunk that is not as it was published.
type Change struct {
	Chunk   int      `json:"chunk"`
	Offset  uint64   `json:"offset"`
	Bytes   uint64   `json:"bytes"`
	Tensors []string `json:"tensors"` // with bytes there; empty unless the Python package made the manifest
}

// Seal hashes chunks, and returns the file of their set.
func Seal(manifest []byte, chunks []control.KeptChunk, hash Hash) (File, error) {
	keys := digest.NewKeys()
	hashes, err := binary.Append(nil, binary.LittleEndian, keys)
	for _, chunk := range chunks {
		var sums []digest.Sum
		if err == nil {
			sums, err = hash(chunk, &keys)
		}
		if err == nil {
			hashes, err = binary.Append(hashes, binary.LittleEndian, sums)
		}
	}
	if errors.Is(err, cuda.NotSupported) {
		hashes, err = nil, nil
	}
	size := binary.LittleEndian.AppendUint64(nil, uint64(len(manifest)))
	return File{slices.Concat(size, manifest, hashes), manifest}, err
}

// Read returns the file that a descriptor stands for, whose position belongs to others.
func Read(descriptor int) (File, error) {
	var state unix.Stat_t
	if err := unix.Fstat(descriptor, &state); err != nil {
		return File{}, err
	}
	all := make([]byte, state.Size)
	n, err := unix.Pread(descriptor, all, 0)
	if all = all[:max(0, n)]; len(all) < 8 || binary.LittleEndian.Uint64(all) > uint64(len(all)-8) {
		return File{}, cmp.Or(err, cuda.Refuse(cuda.NotSupported, "it is that of another version of tms; publish the "+
			"set again"))
	}
	return File{all, all[8:][:binary.LittleEndian.Uint64(all)]}, err
}

// Verify compares chunks with their set's file. Errors: cuda.IllegalState, with the changes; cuda.NotSupported, if they
// were never hashed; those of hash.
func (f File) Verify(chunks []control.KeptChunk, hash Hash) (changes []Change, err error) {
	var keys digest.Keys
	hashes := f.All[8+len(f.Manifest):]
	n, err := binary.Decode(hashes, binary.LittleEndian, &keys)
	if err != nil {
		return nil, cuda.Refuse(cuda.NotSupported, "it was published without hashes, which need CUDA 12.0")
	}
	sums := make([]digest.Sum, (len(hashes)-n)/binary.Size(digest.Sum{}))
	_, _ = binary.Decode(hashes[n:], binary.LittleEndian, sums)
	var python struct {
		Tensors map[string]struct {
			Chunk         int
			Offset, Bytes uint64
		}
	}
	_ = json.Unmarshal(f.Manifest, &python) // a C program writes what it likes
	var names []string
	var differ uint64
	for number, chunk := range chunks {
		now, err := hash(chunk, &keys)
		if err != nil {
			return nil, err
		}
		for i := range now {
			offset := uint64(i) * digest.BlockSize
			c := Change{number, offset, min(digest.BlockSize, chunk.Bytes-offset), []string{}}
			if i < len(sums) && sums[i] == now[i] {
				continue
			}
			for name, t := range python.Tensors {
				if t.Chunk == c.Chunk && t.Offset < c.Offset+c.Bytes && c.Offset < t.Offset+t.Bytes {
					c.Tensors = append(c.Tensors, name)
				}
			}
			slices.Sort(c.Tensors)
			changes, names, differ = append(changes, c), append(names, c.Tensors...), differ+c.Bytes
		}
		sums = sums[min(len(now), len(sums)):]
	}
	if len(changes) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	where := readable.Cut(readable.Printable(strings.Join(slices.Compact(names), ", ")), 200)
	if where == "" {
		where = fmt.Sprintf("chunk %d at byte %d", changes[0].Chunk, changes[0].Offset)
	}
	return changes, cuda.Refuse(cuda.IllegalState, "its contents have changed: %s are not as published, in %s; drop it "+
		"(tms kept drop) and publish it again", readable.Bytes(differ), where)
}
