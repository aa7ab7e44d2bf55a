package vmm_test

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/failpoint"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/store"
)

// thread holds descriptors as the socket's thread does, and knows their numbers.
type thread struct {
	descriptors.Holder
	mu      sync.Mutex
	numbers map[uint64]bool
}

func (h *thread) Keep(descriptor int) (uint64, error) {
	number, err := h.Holder.Keep(descriptor)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.numbers[number] = true
	}
	return number, err
}

func (h *thread) Drop(number uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.numbers, number)
	return h.Holder.Drop(number)
}

// copies returns a copy of each file's descriptor, by its number.
func (h *thread) copies(t *testing.T) map[uint64]int {
	t.Helper()
	of := map[uint64]int{}
	for number := range h.numbers {
		fd, err := h.Copy(number)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		of[number] = fd
	}
	return of
}

// read returns what a file has, with zeros for holes.
func read(t *testing.T, fd int) []byte {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &stat))
	contents := make([]byte, stat.Size)
	n, err := unix.Pread(fd, contents, 0)
	require.NoError(t, err)
	require.Len(t, contents, n)
	return contents
}

// snapshotted is an engine with memory of each kind of backup.
type snapshotted struct {
	*vmm.Engine
	sim     *cudasim.Sim
	thread  *thread
	full    []uintptr // of 8 MiB
	zeros   uintptr   // of 40 MiB, of which two blocks have contents
	options vmm.Options
}

func newSnapshotted(t *testing.T) *snapshotted {
	t.Helper()
	sim, _, engine := simulated(t, 2)
	s := &snapshotted{Engine: engine, sim: sim, thread: &thread{numbers: map[uint64]bool{}}}
	engine.UseDescriptors(s.thread)
	s.options = vmm.Options{ToMemory: true, SaveAll: true}
	for i, r := range []vmm.Request{{Backup: vmm.BackupHost}, {Backup: vmm.BackupSparse}, {Backup: vmm.BackupNone},
		{Backup: vmm.BackupHost, Incremental: true}, {Backup: vmm.BackupPeer, Target: -1},
		{Backup: vmm.BackupHost, Device: 1}} {
		r.Size, r.Tag = 8*mib, "t"
		a := malloc(t, engine, r)
		fill(a, 8*mib, uint64(i))
		s.full = append(s.full, a)
	}
	s.zeros = malloc(t, engine, vmm.Request{Size: 40 * mib, Tag: "t", Backup: vmm.BackupHost})
	clear(bytesAt(s.zeros, 40*mib))
	fill(s.zeros+4*mib, 2*mib, 98)
	fill(s.zeros+38*mib, 2*mib, 99)
	return s
}

func (s *snapshotted) requireContents(t *testing.T) {
	t.Helper()
	requireAll(t, s.full, 8*mib)
	requireFilled(t, s.zeros+4*mib, 2*mib, 98)
	requireFilled(t, s.zeros+38*mib, 2*mib, 99)
	for _, part := range [][2]int{{0, 4}, {6, 38}} {
		bytes := bytesAt(s.zeros+uintptr(part[0]*mib), (part[1]-part[0])*mib)
		require.Zero(t, bytes[0]|bytes[len(bytes)/2]|bytes[len(bytes)-1])
	}
}

// The program goes on, and changes its memory, while a snapshot is made of what it had.
func TestAPauseToFilesInMemory(t *testing.T) {
	s := newSnapshotted(t)
	require.NoError(t, s.Prepare([]string{"t"})()) // pinned copies are given up, since a snapshot takes files alone
	for range 2 {
		require.NoError(t, pause(s.Engine, s.options))
		s.Drain()
		require.Less(t, s.sim.Stat("registered_bytes"), uint64(mib)) // the hashes alone
		require.Equal(t, [2]uint64{52 * mib, 0}, kept(t, s.Engine))
		before := map[int][]byte{}
		for _, fd := range s.thread.copies(t) {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
			require.NoError(t, err)
			before[fd] = read(t, fd)
		}
		require.NotEmpty(t, before)
		require.NoError(t, resume(s.Engine, vmm.Options{}))
		s.requireContents(t)
		fill(s.full[0], 8*mib, 50)
		s.Drain()
		require.Empty(t, s.thread.numbers)
		for fd, contents := range before {
			require.True(t, bytes.Equal(contents, read(t, fd)))
			require.NoError(t, unix.Close(fd))
		}
		fill(s.full[0], 8*mib, 0)
	}
	// Without a snapshot the memory of the files is given back.
	require.NoError(t, pause(s.Engine, s.options))
	copies := s.thread.copies(t)
	require.NoError(t, resume(s.Engine, vmm.Options{}))
	s.Drain()
	for _, fd := range copies {
		require.Empty(t, read(t, fd))
	}
}

// In a restored process other files have the numbers.
func TestContentsThatWereRestored(t *testing.T) {
	s := newSnapshotted(t)
	require.NoError(t, pause(s.Engine, s.options))
	files := s.thread.copies(t)
	for number := range files {
		require.NoError(t, s.thread.Holder.Drop(number)) // the restored thread has none
	}
	require.ErrorContains(t, resume(s.Engine, vmm.Options{}), "a file in host memory cannot be opened")
	var made []int
	for number, fd := range files {
		restored, err := unix.MemfdCreate("restored", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		made = append(made, restored)
		contents := read(t, fd)
		_, err = unix.Pwrite(restored, contents, 0)
		require.NoError(t, err)
		taken, err := unix.Dup(restored)
		require.NoError(t, err)
		require.NoError(t, s.thread.Put(number, 0, &taken))
	}
	require.NoError(t, resume(s.Engine, vmm.Options{}))
	s.requireContents(t)
	s.Drain()
	for _, fd := range made {
		require.Empty(t, read(t, fd), "their memory is given back")
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, pause(s.Engine, s.options))
	require.NoError(t, resume(s.Engine, vmm.Options{}))
	s.requireContents(t)
}

// What was paused before goes to such files, too: whole, sparse, and live parts.
func TestPausedContentsMoveToFilesInMemory(t *testing.T) {
	s := newSnapshotted(t)
	frees(t, s.Engine, s.full[4]) // on another device
	s.full = s.full[:4]
	live := malloc(t, s.Engine, vmm.Request{Size: 8 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(live, 8*mib, 7)
	part := bytes.Clone(bytesAt(live+mib+3, 5000))
	require.NoError(t, s.Live(live, 8*mib, []store.Range{{Offset: mib + 3, Size: 5000}, {Offset: 8*mib - 1, Size: 1}}))
	last := bytesAt(live+8*mib-1, 1)[0]
	none := malloc(t, s.Engine, vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupSparse})
	clear(bytesAt(none, 2*mib))
	require.NoError(t, pause(s.Engine, vmm.Options{SaveAll: true}))
	var calls atomic.Int64
	for _, call := range []string{"memfd_create", "ftruncate", "pwrite"} {
		end := at(call, func() error {
			calls.Add(1)
			return unix.ENOMEM
		})
		before := kept(t, s.Engine)
		_, err := s.Spill(s.options)
		end()
		require.ErrorIs(t, err, unix.ENOMEM)
		require.ErrorContains(t, err, "free host memory", call)
		require.Equal(t, before, kept(t, s.Engine))
	}
	require.Positive(t, calls.Load())
	moved, err := s.Spill(s.options)
	require.NoError(t, err)
	require.NotZero(t, moved)
	require.Less(t, s.sim.Stat("registered_bytes"), uint64(mib)) // the hashes alone
	moved, err = s.Spill(s.options)
	require.NoError(t, err)
	require.Zero(t, moved)
	require.NoError(t, resume(s.Engine, vmm.Options{}))
	requireAll(t, s.full[:4], 8*mib)
	require.True(t, bytes.Equal(part, bytesAt(live+mib+3, 5000)))
	require.Equal(t, last, bytesAt(live+8*mib-1, 1)[0])
	require.True(t, bytes.Equal(make([]byte, 2*mib), bytesAt(none, 2*mib)))
}

func TestContentsOnAnotherDeviceAreNotForASnapshot(t *testing.T) {
	s := newSnapshotted(t)
	require.NoError(t, pause(s.Engine, vmm.Options{SaveAll: true}))
	_, err := s.Spill(s.options)
	require.ErrorContains(t, err, `contents of tag "t" wait in the memory of another device`)
	require.NoError(t, resume(s.Engine, vmm.Options{}))
	s.requireContents(t)
}

func TestAPauseToFilesInMemoryFails(t *testing.T) {
	s := newSnapshotted(t)
	defer failpoint.Set(nil)
	for _, call := range []string{"memfd_create", "ftruncate", "pwrite"} {
		for nth := int64(1); nth <= 3; nth++ {
			s.Drain() // what is given back makes such calls, too
			var calls atomic.Int64
			end := at(call, func() error {
				if calls.Add(1) == nth {
					return unix.ENOMEM
				}
				return nil
			})
			err := pause(s.Engine, s.options)
			end()
			if calls.Load() < nth {
				require.NoError(t, err)
				require.NoError(t, resume(s.Engine, vmm.Options{}))
				break
			}
			require.ErrorIs(t, err, unix.ENOMEM, call)
			s.requireContents(t)
		}
		s.requireContents(t)
	}
	s.Drain()
	require.Empty(t, s.thread.numbers)
}
