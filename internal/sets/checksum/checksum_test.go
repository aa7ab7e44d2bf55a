package checksum

import (
	"errors"
	"os"
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
		"bytes": 16}, "empty": {"chunk": 0, "offset": 4194304, "bytes": 0}, "c": {"chunk": 2, "offset": 2097151,
		"bytes": 2}}}`
	m := memory{{1, 2, 3, 4}, {5}, {6, 7, 8}}
	made, err := Seal([]byte(manifest), chunks, m.hash)
	require.NoError(t, err)
	file := again(t, made.All)
	require.Equal(t, manifest, string(file.Manifest))
	changes, err := file.Verify(chunks, m.hash)
	require.NoError(t, err)
	require.Empty(t, changes)
	changes, err = file.Verify(chunks, memory{{0, 0, 3, 0}, {5}, {6, 0, 0}}.hash)
	require.Equal(t, []Change{{0, 0, block, []string{"a"}}, {0, block, block, []string{"a"}},
		{0, 3 * block, block, []string{}}, {2, block, block, []string{"c"}}, {2, 2 * block, 16, []string{}}}, changes)
	require.Equal(t, int(cuda.IllegalState), cuda.Code(err))
	require.ErrorContains(t, err, "8.00 MiB are not as published, in a, c;")
	_, err = file.Verify(chunks, memory{{1, 2, 0, 4}, {5}, {6, 7, 8}}.hash)
	require.ErrorContains(t, err, "2.00 MiB are not as published, in b;")
	_, err = file.Verify(chunks, memory{{1, 2, 3, 0}, {5}, {6, 7, 8}}.hash)
	require.ErrorContains(t, err, "in chunk 0 at byte 6291456;")
	no := func(control.KeptChunk, *digest.Keys) ([]digest.Sum, error) { return nil, errors.New("no") }
	_, err = file.Verify(chunks, no)
	require.EqualError(t, err, "no")
	_, err = Seal(nil, chunks, no)
	require.EqualError(t, err, "no")
	_, err = again(t, made.All[:len(made.All)-1]).Verify(chunks, m.hash)
	require.ErrorContains(t, err, "16 bytes are not as published")
}

func TestFilesWithoutHashes(t *testing.T) {
	made, err := Seal([]byte("{}"), chunks, func(control.KeptChunk, *digest.Keys) ([]digest.Sum, error) {
		return nil, cuda.NotSupported
	})
	require.NoError(t, err)
	file := again(t, made.All)
	require.Equal(t, "{}", string(file.Manifest))
	_, err = file.Verify(chunks, nil)
	require.ErrorContains(t, err, "published without hashes")
	for _, other := range []string{"", "{}", `{"tensors": {}}`} {
		_, err = Read(descriptor(t, []byte(other)))
		require.ErrorContains(t, err, "another version of tms")
	}
}

func again(t *testing.T, all []byte) File {
	file, err := Read(descriptor(t, all))
	require.NoError(t, err)
	return file
}

func descriptor(t *testing.T, contents []byte) int {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	_, err = file.Write(contents)
	require.NoError(t, err)
	return int(file.Fd())
}
