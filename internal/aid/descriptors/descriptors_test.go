package descriptors_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
)

// file makes a file in memory.
func file(t *testing.T) int {
	t.Helper()
	descriptor, err := unix.MemfdCreate("tested", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	return descriptor
}

// open returns how many descriptors stand for a file that has no descriptor outside the test.
func open(t *testing.T, of descriptors.File) (count int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for number := range 2*len(entries) + 64 {
		if of.Is(number) {
			count++
		}
	}
	return count
}

// Each descriptor that a Holder took over is closed once, whichever threads put, copy and drop at the same time.
func TestAHolderClosesWhatItTook(t *testing.T) {
	first := file(t)
	of, err := descriptors.FileOf(first)
	require.NoError(t, err)
	var h descriptors.Holder
	var all sync.WaitGroup
	for thread := range 8 {
		all.Go(func() {
			for turn := range 200 {
				number := uint64(1 + (thread+turn)%5)
				copied, err := unix.FcntlInt(uintptr(first), unix.F_DUPFD_CLOEXEC, 0)
				if err == nil {
					err = h.Put(number, 7, &copied)
				}
				if err != nil || copied != -1 {
					t.Error("not put: ", err)
				}
				if came, err := h.Copy(number); err == nil {
					h.Close(came)
				} else if !errors.Is(err, unix.EBADF) {
					t.Error(err)
				}
				if turn%2 == 0 {
					_ = h.Drop(number)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 1+h.Count(), open(t, of))
	for number := uint64(1); number <= 5; number++ {
		require.NoError(t, h.Drop(number))
	}
	require.Zero(t, h.Count())
	require.Equal(t, 1, open(t, of))
	require.NoError(t, unix.Close(first))
}

// A Holder that refuses a descriptor has not taken it.
func TestAHolderWithoutRoom(t *testing.T) {
	full := errors.New("full")
	h := descriptors.Holder{Room: func(count, _ int) error {
		if count < 2 {
			return nil
		}
		return full
	}}
	given := file(t)
	of, err := descriptors.FileOf(given)
	require.NoError(t, err)
	number, err := h.Keep(given)
	require.NoError(t, err)
	_, err = h.Keep(given)
	require.NoError(t, err)
	_, err = h.Keep(given)
	require.ErrorIs(t, err, full)
	require.ErrorIs(t, h.Put(5, 0, &given), full)
	require.GreaterOrEqual(t, given, 0)
	_, has := h.Bytes(5)
	require.False(t, has)
	require.Equal(t, 3, open(t, of))

	require.NoError(t, h.Drop(number))
	require.NoError(t, h.Put(5, 9, &given))
	require.Equal(t, -1, given)
	bytes, has := h.Bytes(5)
	require.Equal(t, []any{uint64(9), true}, []any{bytes, has})
	h.Room = nil
	require.ErrorIs(t, h.Put(6, 0, &given), unix.EBADF)
}

// What leaves is open until it is dropped, or stays. It does not count, and is not given twice.
func TestADescriptorThatLeaves(t *testing.T) {
	var h descriptors.Holder
	given := file(t)
	require.NoError(t, h.Put(1, 9, &given))
	for range 2 {
		require.True(t, h.Leave(1))
		require.False(t, h.Leave(1))
		_, has := h.Bytes(1)
		require.Equal(t, []any{false, 0}, []any{has, h.Count()})
		copied, err := h.Copy(1)
		require.NoError(t, err)
		h.Close(copied)
		h.Stay(1)
		h.Stay(1)
		require.Equal(t, 1, h.Count())
	}
	require.True(t, h.Leave(1))
	require.NoError(t, h.Drop(1))
	require.False(t, h.Leave(1))
	h.Stay(1)
	require.Zero(t, h.Count())
	_, err := h.Copy(1)
	require.ErrorIs(t, err, unix.EBADF)
}

// A copy goes through a socket with the first byte, and the last one that comes takes the place of the one before.
func TestDescriptorsPassThroughASocket(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	given := file(t)
	of, err := descriptors.FileOf(given)
	require.NoError(t, err)
	passed := -1
	receive := func() string {
		buffer := make([]byte, 10)
		n, err := descriptors.Receive(pair[1], buffer, &passed)
		require.NoError(t, err)
		return string(buffer[:n])
	}
	for range 2 {
		n, err := descriptors.Send(pair[0], []byte("line"), given, 0)
		require.Equal(t, []any{4, nil}, []any{n, err})
		require.Equal(t, "line", receive())
		require.True(t, of.Is(passed))
		require.Equal(t, 2, open(t, of))
	}
	_, err = descriptors.Send(pair[0], []byte("more"), -1, 0)
	require.NoError(t, err)
	require.Equal(t, "more", receive())
	require.True(t, of.Is(passed), "it stays until the next")

	// Others beside the first are closed.
	require.NoError(t, unix.Sendmsg(pair[0], []byte("two"), unix.UnixRights(given, given), nil, 0))
	require.Equal(t, "two", receive())
	require.Equal(t, 2, open(t, of))
	for _, each := range []int{passed, given, pair[0], pair[1]} {
		require.NoError(t, unix.Close(each))
	}
	require.False(t, of.Is(given))
	require.False(t, of.Is(-1))
}
