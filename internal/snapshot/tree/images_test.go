package tree

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/snapshot"
)

// warm is a snapshot with 2 MiB of contents and 2 MiB of private memory. Zeros need nothing.
var warm = &snapshot.Manifest{
	Processes: []snapshot.Process{{Contents: []snapshot.Held{
		{Content: snapshot.Content{Size: 2 << 20, Blocks: []snapshot.Sum{{1}}}},
	}}},
	Pages: []snapshot.File{{Content: snapshot.Content{Size: 4 << 20, Blocks: []snapshot.Sum{{}, {2}}}}},
}

// A restore says what is short before the kernel ends a program for it.
func TestARestoreNeedsHostMemory(t *testing.T) {
	for copies, needs := range []uint64{4 << 20, 4 << 20, 8 << 20, 10 << 20} {
		require.NoError(t, hasRoom(warm, copies, needs))
		require.Error(t, hasRoom(warm, copies, needs-1))
	}
	require.ErrorContains(t, hasRoom(warm, 3, 9<<20), "the restore needs 10.00 MiB of host memory (contents of 2.00 MiB, and 4 "+
		"times 2.00 MiB of private memory), and 9.00 MiB is available here")
}

// A dump goes to memory where the copy fits and a quarter of it more, and else to the disk.
func TestADumpNeedsHostMemory(t *testing.T) {
	require.NoError(t, roomFor(4<<20, 5<<20))
	require.ErrorContains(t, roomFor(4<<20, 5<<20-1), "have 4.00 MiB of host memory, and 5.00 MiB is available for a copy")
	own := memoryOf([]snapshot.Process{{PID: os.Getpid()}})
	memory := make([]byte, 64<<20)
	for at := 0; at < len(memory); at += os.Getpagesize() {
		memory[at] = 1
	}
	require.GreaterOrEqual(t, memoryOf([]snapshot.Process{{PID: os.Getpid()}})-own, uint64(60<<20))
	runtime.KeepAlive(memory)
}

// Blocks stay in the page cache where memory is for three times as much.
func TestRoomToCache(t *testing.T) {
	require.True(t, roomToCache(warm, 12<<20))
	require.False(t, roomToCache(warm, 12<<20-1))
}
