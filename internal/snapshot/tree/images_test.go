package tree

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/snapshot"
)

// warm is a snapshot with 2 MiB of contents and 4 MiB of private memory, half of it zeros.
var warm = &snapshot.Manifest{
	Processes: []snapshot.Process{{Contents: []snapshot.Held{
		{Content: snapshot.Content{Size: 2 << 20, Blocks: []snapshot.Sum{{1}}}},
	}}},
	Pages: []snapshot.File{{Content: snapshot.Content{Size: 4 << 20, Blocks: []snapshot.Sum{{}, {2}}}}},
}

// A restore says what is short before the kernel ends a program for it.
func TestARestoreNeedsHostMemory(t *testing.T) {
	for copies, needs := range []uint64{7 << 20, 7 << 20, 14 << 20, 19 << 20} {
		require.NoError(t, hasRoom(warm, 1<<20, copies, needs))
		require.Error(t, hasRoom(warm, 1<<20, copies, needs-1))
	}
	require.ErrorContains(t, hasRoom(warm, 1<<20, 3, 9<<20), "the restore needs 19.00 MiB of host memory (4.00 MiB for all "+
		"copies, and 3 times 5.00 MiB), and 9.00 MiB is available here")

	whole := *warm // CRIU reads one of the files of pages in the snapshot's own folder
	whole.Files = []snapshot.File{{Path: "images/pages-2.img", Content: snapshot.Content{Size: 8 << 20}}, {Path: "images/core-1.img",
		Content: snapshot.Content{Size: 1 << 20}}}
	require.NoError(t, hasRoom(&whole, 0, 1, 16<<20))
	require.Error(t, hasRoom(&whole, 0, 1, 16<<20-1))
}

// Holes of shared memory take nothing in a snapshot and after it.
func TestSharedMemoryKeepsItsHoles(t *testing.T) {
	folder := t.TempDir()
	const end = 3<<20 + 5
	for name, size := range map[string]int64{"data at the end": end, "a hole at the end": 8 << 20, "empty": 0} {
		t.Run(name, func(t *testing.T) {
			from, to := filepath.Join(sharedMemory, filepath.Base(folder)), filepath.Join(folder, name)
			file, err := os.Create(from)
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.Remove(from) })
			expected := make([]byte, size)
			if size > 0 {
				for _, at := range []int64{2 << 20, end - 1} {
					expected[at] = 1
					_, err = file.WriteAt(expected[at:at+1], at)
					require.NoError(t, err)
				}
			}
			require.NoError(t, file.Truncate(size))
			require.NoError(t, file.Close())
			require.NoError(t, copyFile(to, from))
			got, err := os.ReadFile(to)
			require.NoError(t, err)
			require.True(t, bytes.Equal(expected, got))
			both := []snapshot.Shared{{Path: name}, {Path: name, Name: "another name"}}
			require.LessOrEqual(t, sharedBytes(folder, both), uint64(1<<20))
			info, err := os.Stat(to)
			require.NoError(t, err)
			require.LessOrEqual(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(1<<20))
		})
	}
}

// A dump goes to memory where the copy fits and a quarter of it more, and else to the disk.
func TestADumpNeedsHostMemory(t *testing.T) {
	hermetic.MapFiles(t)
	const size = 64 << 20
	require.NoError(t, roomFor(4<<20, 5<<20))
	require.ErrorContains(t, roomFor(4<<20, 5<<20-1), "have 4.00 MiB of host memory, and 5.00 MiB is available for a copy")
	self := &Tree{Processes: []snapshot.Process{{PID: os.Getpid()}}}
	grows := func(name string, take func()) {
		debug.FreeOSMemory() // which the Go runtime would do at some moment
		before := memoryOf(self.now())
		take()
		require.GreaterOrEqual(t, memoryOf(self.now())-before+1<<20, uint64(size), name)
	}
	anonymous := func(flags int) func() {
		return func() {
			memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_POPULATE|flags)
			require.NoError(t, err)
			t.Cleanup(func() { _ = unix.Munmap(memory) })
		}
	}
	open := func(file *os.File, err error) {
		require.NoError(t, err)
		t.Cleanup(func() { _ = file.Close() })
		require.NoError(t, unix.Fallocate(int(file.Fd()), 0, 0, size))
	}
	grows("private", anonymous(unix.MAP_PRIVATE))
	grows("shared", anonymous(unix.MAP_SHARED))
	grows("memfd, not mapped", func() { open(snapshot.NewMemory(0)) })
	grows("/dev/shm, not mapped", func() {
		file, err := os.CreateTemp(sharedMemory, "test-")
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.Remove(file.Name()) })
		open(file, nil)
	})
	grows("a child that was born since", func() {
		child := exec.Command("python3", "-c", fmt.Sprintf("memory = b'1' * %d; print(flush=True); input()", size))
		stdin, err := child.StdinPipe()
		require.NoError(t, err)
		stdout, err := child.StdoutPipe()
		require.NoError(t, err)
		if child.Start() != nil {
			t.Skip("there is no python3")
		}
		t.Cleanup(func() { _ = stdin.Close(); _ = child.Wait() })
		_, err = bufio.NewReader(stdout).ReadString('\n')
		require.NoError(t, err)
	})
}

// Blocks stay in the page cache where memory is for three times as much.
func TestRoomToCache(t *testing.T) {
	require.True(t, roomToCache(warm, 12<<20))
	require.False(t, roomToCache(warm, 12<<20-1))
}
