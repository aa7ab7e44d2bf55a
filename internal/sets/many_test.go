package sets

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/control"
)

// The cost of a request hardly grows with the number of sets. When each looked at all pairs of sets, these took
// minutes.
func TestManySets(t *testing.T) {
	k, last := NewKeeper(), uint64(1<<30)
	k.held.Room = nil
	self, err := ownerOf(os.Getpid())
	require.NoError(t, err)
	ask := func(r control.Request) control.Reply {
		last++
		given := int(last) // the number of no descriptor: closing it fails
		reply, _, _, err := k.answer(self, r, &given)
		require.NoError(t, err)
		return reply
	}
	start := time.Now()
	const sets = 3000
	for id := uint64(1); id <= sets; id++ {
		ask(control.SetRequest{Op: control.Put, Set: id, Name: fmt.Sprint("set ", id), Chunk: sets + id, Bytes: 1})
		ask(control.SetRequest{Op: control.Seal, Set: id, Before: 1})
	}
	require.Len(t, ask(control.SetRequest{Op: control.List}).Sets, sets)
	for id := uint64(1); id <= sets; id++ {
		ask(control.SetRequest{Op: control.Drop, Name: fmt.Sprint("set ", id)})
		ask(control.SetRequest{Op: control.Close, Set: id})
	}
	require.Less(t, time.Since(start), time.Minute)
	require.Empty(t, k.sets)
	require.Empty(t, k.chunks)
	require.Empty(t, k.owners)
	require.True(t, k.empty())
}

// A keeper that has no reserved memory, and of which no process has any, may end.
func TestWhatAKeeperStaysFor(t *testing.T) {
	k, node := NewKeeper(), 0
	given, err := unix.MemfdCreate("extent", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	self, err := ownerOf(os.Getpid())
	require.NoError(t, err)
	_, _, _, err = k.answer(self, control.SetRequest{Op: control.Give, Node: &node}, &given)
	require.NoError(t, err)
	require.False(t, k.empty(), "it has an extent")
	_, copied, settle, err := k.answer(self, control.SetRequest{Op: control.Take, Node: &node, Bytes: 1}, &given)
	require.NoError(t, err)
	require.False(t, k.empty(), "a process has it, and will give it back")
	settle(false)
	require.NoError(t, unix.Close(copied))
	require.False(t, k.empty(), "it came back")
	_, copied, settle, err = k.answer(owner{self.pid, self.start + 1},
		control.SetRequest{Op: control.Take, Node: &node, Bytes: 1}, &given)
	require.NoError(t, err)
	settle(true)
	require.NoError(t, unix.Close(copied))
	k.sweep()
	require.True(t, k.empty(), "the process has ended")
	require.Zero(t, k.held.Count())
}
