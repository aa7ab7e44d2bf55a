package checksum

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/vmm/cuda"
	"tms/vmm/digest"
)

const block = digest.BlockSize

// memory is a set's blocks, by chunk, each as a number that is its hash.
type memory [][]uint64

func (m memory) hash(chunk control.KeptChunk, keys *digest.Keys) (sums []digest.Sum, err error) {
	for _, number := range m[chunk.ID] {
		sums = append(sums, digest.Sum{number, keys[0].R})
	}
	return sums, nil
}

var chunks = []control.KeptChunk{{ID: 0, Bytes: 4 * block}, {ID: 1, Bytes: 1000}, {ID: 2, Bytes: 2*block + 16}}

func TestChangesAreNamed(t *testing.T) {
	manifest := `{"tensors": {"a": {"chunk": 0, "offset": 0, "bytes": 4194304}, "b": {"chunk": 0, "offset": 4194304,
		"bytes": 16}, "empty": {"chunk": 0, "offset": 4194304, "bytes": 0}, "c": {"chunk": 2, "offset": 4194303,
		"bytes": 2}}}`
	m := memory{{1, 2, 3, 4}, {5}, {6, 7, 8}}
	file, err := Seal([]byte(manifest), chunks, m.hash)
	require.NoError(t, err)
	got, err := Manifest(file, chunks)
	require.NoError(t, err)
	require.Equal(t, manifest, string(got))
	changes, err := Verify(file, chunks, m.hash)
	require.NoError(t, err)
	require.Empty(t, changes)
	changes, err = Verify(file, chunks, memory{{0, 0, 3, 0}, {5}, {6, 0, 0}}.hash)
	require.Equal(t, []Change{
		{0, 0, 2 * block, []string{"a"}}, {0, 3 * block, block, []string{}}, {2, block, block + 16, []string{"c"}},
	}, changes)
	require.Equal(t, int(cuda.IllegalState), cuda.Code(err))
	require.ErrorContains(t, err, "8.00 MiB are not as published, in a, c;")
	_, err = Verify(file, chunks, memory{{1, 2, 0, 4}, {5}, {6, 7, 8}}.hash)
	require.ErrorContains(t, err, "2.00 MiB are not as published, in b;")
	_, err = Verify(file, chunks, func(control.KeptChunk, *digest.Keys) ([]digest.Sum, error) {
		return nil, errors.New("no")
	})
	require.EqualError(t, err, "no")
}

func TestManyTensorsHaveChanged(t *testing.T) {
	manifest := `{"tensors": {"0": {"chunk": 0, "offset": 0, "bytes": 1}`
	for i := 1; i < 7; i++ {
		manifest += fmt.Sprintf(`, "%d": {"chunk": 0, "offset": %d, "bytes": 1}`, i, i)
	}
	file, err := Seal([]byte(manifest+"}}"), chunks[:1], memory{{1, 2, 3, 4}}.hash)
	require.NoError(t, err)
	_, err = Verify(file, chunks[:1], memory{{0, 2, 3, 4}}.hash)
	require.ErrorContains(t, err, "in 0, 1, 2, 3, 4 and 2 more;")
}

func TestFilesWithoutHashes(t *testing.T) {
	calls := 0
	file, err := Seal(nil, chunks, func(control.KeptChunk, *digest.Keys) ([]digest.Sum, error) {
		calls++
		return nil, cuda.NotSupported
	})
	require.NoError(t, err)
	require.Len(t, chunks, calls)
	_, err = Verify(file, chunks, nil)
	require.ErrorContains(t, err, "published without hashes")
	_, err = Verify(file[1:], chunks, nil)
	require.ErrorContains(t, err, "another version of tms")
}
