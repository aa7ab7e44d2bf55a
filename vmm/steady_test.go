package vmm_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
	"tms/vmm"
	"tms/vmm/cuda"
)

// holdings is what a process has.
type holdings struct {
	resident              int // pages
	descriptors, threads  int
	handles, reservations uint64
}

func (s *scene) holdings() (h holdings) {
	s.engine.Drain()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(s.t, err)
	_, err = fmt.Sscan(string(text), new(int), &h.resident)
	require.NoError(s.t, err)
	for path, count := range map[string]*int{"/proc/self/fd": &h.descriptors, "/proc/self/task": &h.threads} {
		entries, err := os.ReadDir(path)
		require.NoError(s.t, err)
		*count = len(entries)
	}
	h.handles, h.reservations = s.sim.Stat("handles"), s.sim.Stat("reservations")
	return h
}

// Cycles of pause and resume leave nothing behind: 10^5 of them in scripts/soak.sh (TMS_CYCLES).
func TestCyclesAreSteady(t *testing.T) {
	hermetic.Thorough(t)
	cycles := hermetic.Number(t, "TMS_CYCLES", 600)
	s := newScene(t, t.TempDir(), &faults{})
	failpoint.Set(nil)
	s.engine.CheckInvariants(false)
	for i, r := range kinds {
		if r.Backup == vmm.BackupDisk && cycles > 10000 {
			continue // 10^5 files on a disk are the disk's test; the model has them
		}
		r.Size, r.Device, r.Tag = uint64(20*kib+i*sceneGranularity), i%2, "t"
		s.malloc(r)
	}
	s.context = 0
	run := func(n int) {
		for range n {
			s.pause("t")
			s.resume("t")
		}
	}
	run(cycles / 5)
	before := s.holdings()
	run(cycles - cycles/5)
	after := s.holdings()
	t.Logf("%d cycles: %+v, then %+v", cycles, before, after)
	require.Equal(t, before.handles, after.handles)
	require.Equal(t, before.reservations, after.reservations)
	require.Equal(t, before.descriptors, after.descriptors)
	require.InDelta(t, before.threads, after.threads, float64(2*runtime.NumCPU()+8), "threads")
	if !testing.Short() { // the race detector keeps pages of its own
		require.Less(t, after.resident-before.resident, 4<<20/4096, "pages more; fewer are what tests before had left")
	}
	for _, p := range s.all {
		require.NoError(t, s.engine.Free(p.address, false))
	}
	s.engine.Trim()
	s.engine.Drain()
	require.Zero(t, s.sim.Stat("handles"))
}

// A fault of the program's own kernel ends the context: every operation says so at once, and even a resume that may
// wait for memory does not wait.
func TestAFaultOfTheProgramIsReported(t *testing.T) {
	s := newScene(t, t.TempDir(), &faults{})
	failpoint.Set(nil)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := vmm.Request{Size: 100 * kib, Tag: "t", Backup: vmm.BackupHost}
	a, err := s.engine.Malloc(r)
	require.NoError(t, err)
	r.Tag = "u"
	b, err := s.engine.Malloc(r)
	require.NoError(t, err)
	require.NoError(t, pause(s.engine, s.options("u")))

	// A fill of memory that is unmapped before it runs.
	address, err := s.driver.MemAddressReserve(sceneGranularity, 0)
	require.NoError(t, err)
	handle, err := s.driver.MemCreate(sceneGranularity, 0)
	require.NoError(t, err)
	require.NoError(t, s.driver.MemMap(address, sceneGranularity, handle))
	require.NoError(t, s.driver.MemSetAccess(address, sceneGranularity, 0))
	require.NoError(t, s.driver.MemsetD32Async(address, 1, 1, 0))
	require.NoError(t, s.driver.MemUnmap(address, sceneGranularity))
	require.ErrorIs(t, s.driver.CtxSynchronize(), cuda.IllegalAddress)

	start := time.Now()
	waiting := s.options("")
	waiting.Wait = time.Hour
	for range 3 {
		for name, err := range map[string]error{
			"pause":      pause(s.engine, s.options("t")),
			"pause all":  pause(s.engine, s.options("")),
			"resume":     resume(s.engine, waiting),
			"free":       s.engine.Free(a, false),
			"prepare":    s.engine.Prepare(nil)(),
			"free after": s.engine.FreeAfter(a, 0),
		} {
			require.ErrorIs(t, err, cuda.IllegalAddress, name)
			require.Equal(t, int(cuda.IllegalAddress), cuda.Code(err), name)
		}
	}
	s.engine.Trim()
	s.engine.Drain()
	require.Less(t, time.Since(start), 10*time.Minute)
	// Contents in host memory can still be read: only the device is gone.
	host, err := s.engine.BackupPointer(b, 1, false)
	require.NoError(t, err)
	require.NotZero(t, *(*uintptr)(unsafe.Pointer(&host)))
	s.engine.Reset(0)
	_, ok := s.engine.Records().MemoryAt(a)
	require.False(t, ok)
}
