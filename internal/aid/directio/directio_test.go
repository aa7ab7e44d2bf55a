package directio

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A file system may refuse O_DIRECT at the first requests, which several threads make at once. Each of them goes through
// the page cache then.
func TestRequestsThatAreRefusedAtOnce(t *testing.T) {
	fd, err := unix.MemfdCreate("refuses", 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	var direct atomic.Bool
	direct.Store(true)
	file := File{func() (int, error) { return fd, nil }, &direct}
	var made, all sync.WaitGroup
	made.Add(2)
	errs := make([]error, 2)
	for i := range errs {
		all.Go(func() {
			first := true
			_, errs[i] = file.each(func(fd int, part []byte, offset int64) (int, error) {
				if first {
					first = false
					made.Done()
					made.Wait()
					return -1, unix.EINVAL
				}
				return unix.Pwrite(fd, part, offset)
			}, bytes.Repeat([]byte{1}, Block), int64(i)*Block, io.ErrShortWrite)
		})
	}
	all.Wait()
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	require.False(t, direct.Load())
	written := make([]byte, 2*Block)
	require.NoError(t, file.Read(written, 0))
	require.Equal(t, bytes.Repeat([]byte{1}, 2*Block), written)
}

// A request that is wrong in itself fails, and is repeated once at most.
func TestARequestThatIsWrong(t *testing.T) {
	fd, err := unix.MemfdCreate("refuses", 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.ErrorIs(t, Of(fd).Write(make([]byte, 1), -1), unix.EINVAL)
}
