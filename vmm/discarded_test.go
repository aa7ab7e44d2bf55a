package vmm_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// residentBytes is the process's private memory that is in use.
func residentBytes(t *testing.T) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	kib, err := strconv.ParseUint(string(regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(text)[1]), 10, 64)
	require.NoError(t, err)
	return kib << 10
}

// Clients measure host memory when a resume, or a free, returns: memory that is not retained is back by then. On a busy
// machine that may go on in the background, except for callers that want it promptly.
func TestHostMemoryIsBackWhenTheCallReturns(t *testing.T) {
	debug.FreeOSMemory() // or what other tests have left goes while this one measures
	for _, prompt := range []bool{false, true} {
		sim, _, engine := simulated(t, 1)
		const size = 16 * mib
		var before uint64
		calls, quick := 0, 0
		backAfter := func(operation func() error) {
			t.Helper()
			require.NotZero(t, sim.Stat("registered_bytes"))
			require.Greater(t, residentBytes(t), before+size*3/4)
			require.NoError(t, operation())
			// What is no longer pinned may still be about to be unmapped, in the background.
			if calls++; sim.Stat("registered_bytes") == 0 && residentBytes(t) < before+size/2 {
				quick++
			}
			engine.Drain()
		}
		for range 10 {
			a := mallocs(t, engine, 2, vmm.Request{Size: size / 2, Tag: "t", Backup: vmm.BackupHost, Prompt: prompt})
			fill(a[0], size/2, 1)
			before = residentBytes(t)
			require.NoError(t, pause(engine, name("t")))
			backAfter(func() error { return resume(engine, name("t")) })
			requireFilled(t, a[0], size/2, 1)

			require.NoError(t, pause(engine, name("t")))
			require.NoError(t, engine.Free(a[0], false)) // the other's contents lie in the same registration
			backAfter(func() error { return engine.Free(a[1], false) })
		}
		if prompt {
			require.Equal(t, calls, quick)
		} else {
			require.Positive(t, quick)
		}
	}
}

// gated makes every call of a kind wait until open is called, at the latest when the test ends.
func gated(t *testing.T, call string) (open func()) {
	t.Helper()
	gate := make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	end := at(call, func() error { <-gate; return nil })
	t.Cleanup(func() {
		end()
		open()
	})
	return open
}

// Where giving back takes long, it goes on in the background, except for a caller that asked to wait for it.
func TestGivingBackIsWaitedForWithinBounds(t *testing.T) {
	for _, prompt := range []bool{false, true} {
		sim, _, engine := simulated(t, 1)
		a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost, Prompt: prompt})
		for _, operation := range []func() error{
			func() error { return resume(engine, name("t")) },
			func() error { return engine.Free(a, false) },
		} {
			require.NoError(t, pause(engine, name("t")))
			open := gated(t, "cuMemHostUnregister")
			begin, done := time.Now(), make(chan error)
			go func() { done <- operation() }()
			if prompt {
				select {
				case err := <-done:
					require.Fail(t, "it has not waited", "%v", err)
				case <-time.After(100 * time.Millisecond):
				}
				open()
				require.NoError(t, <-done)
				require.Zero(t, sim.Stat("registered_bytes"))
			} else {
				require.NoError(t, <-done)
				require.GreaterOrEqual(t, time.Since(begin), 20*time.Millisecond)
				require.NotZero(t, sim.Stat("registered_bytes"))
				open()
			}
			engine.Drain()
		}
	}
}

// A caller that gives up nothing waits for nothing, whatever goes on in the background.
func TestOthersDoNotWaitForGivingBack(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost, Prompt: true})
	plain := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "plain"})
	require.NoError(t, pause(engine, nothing))
	open := gated(t, "cuMemHostUnregister")
	var resumed sync.WaitGroup
	resumed.Go(func() { require.NoError(t, resume(engine, name("t"))) })
	require.Eventually(t, func() bool { return !engine.PausedAt(a) }, time.Minute, time.Millisecond)
	require.NoError(t, resume(engine, name("plain")))
	require.NoError(t, pause(engine, name("plain")))
	require.NoError(t, engine.Free(plain, false))
	open()
	resumed.Wait()
}

// Nor does a resume of which the program does not know: its threads wait for the memory alone.
func TestUnseenResumesDoNotWaitForGivingBack(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost, Prompt: true})
	fill(a, 4*mib, 1)
	require.NoError(t, pause(engine, nothing))
	open := gated(t, "cuMemHostUnregister")
	require.NoError(t, resume(engine, vmm.Options{Unseen: true}))
	requireFilled(t, a, 4*mib, 1)
	open()
	engine.Drain()
}

// A pause right after a resume finds the memory that the resume has given up, although it is not back yet.
func TestPauseFindsWhatIsStillGivenBack(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(a, 4*mib, 1)
	require.NoError(t, pause(engine, name("t")))
	var held atomic.Bool
	held.Store(true)
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	failpoint.Set(func(call string) error {
		switch call {
		case "cuMemHostUnregister":
			<-gate
		case "munmap":
			held.Store(false)
		case "mmap":
			if held.Load() {
				return unix.ENOMEM
			}
		}
		return nil
	})
	defer failpoint.Set(nil)
	require.NoError(t, resume(engine, name("t")))
	require.True(t, held.Load())
	time.AfterFunc(50*time.Millisecond, open)
	cycle(t, engine, name("t"))
	requireFilled(t, a, 4*mib, 1)
}

var nothing vmm.Options // of them is set

// A file system that is slow to take a file back holds up no allocation.
func TestSlowFileSystemHoldsUpNoAllocation(t *testing.T) {
	_, _, engine := simulated(t, 1)
	o := vmm.Options{DiskDir: t.TempDir()}
	onDisk := mallocs(t, engine, 2, vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupDisk})
	require.NoError(t, pause(engine, o))
	cutting, gate := make(chan struct{}, 2), make(chan struct{})
	defer at("punch", func() error {
		cutting <- struct{}{}
		<-gate
		return nil
	})()
	var errs []error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		errs = append(errs, engine.Free(onDisk[0], false))
		select {
		case <-cutting:
		case <-gate: // the minute is over
		}
		for range 10 {
			a, err := engine.Malloc(vmm.Request{Size: 2 * mib, Tag: "other"})
			errs = append(errs, err, engine.Free(a, false))
		}
		errs = append(errs, resume(engine, o))
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("an allocation waits for the space of a file")
	}
	close(gate)
	<-ended
	require.NoError(t, errors.Join(errs...))
	engine.Drain()
	require.Zero(t, openIn(t, o.DiskDir))
}

// Contents that the disk does not read are lost; every error says so and names the segment, and the rest goes on.
func TestLostContents(t *testing.T) {
	_, _, engine := simulated(t, 1)
	o := vmm.Options{DiskDir: t.TempDir()}
	other := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "other", Backup: vmm.BackupHost})
	kept := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "precious"})
	lost := malloc(t, engine, vmm.Request{Size: 3 * mib, Tag: "precious", Backup: vmm.BackupDisk})
	fill(other, 2*mib, 2)
	require.NoError(t, pause(engine, o))
	end := at("pread", func() error { return unix.EIO })
	for range 3 {
		err := resume(engine, o)
		require.ErrorIs(t, err, store.ErrContentsLost)
		require.Equal(t, 301, cuda.Code(err))
		require.ErrorContains(t, err, o.DiskDir)
		require.ErrorContains(t, err, fmt.Sprintf(`tag "precious", %d bytes at %#x`, 3*mib, lost))
		for _, a := range []uintptr{other, kept, lost} {
			require.True(t, engine.PausedAt(a))
		}
	}
	require.NoError(t, resume(engine, name("other")))
	requireFilled(t, other, 2*mib, 2)
	require.NoError(t, engine.Free(lost, false))
	end()
	require.NoError(t, resume(engine, o))
	require.False(t, engine.PausedAt(kept))
	engine.Drain()
	require.Zero(t, openIn(t, o.DiskDir))
}

// openIn returns how many files in a directory the process has open.
func openIn(t testing.TB, directory string) (count int) {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, descriptor := range descriptors {
		if target, _ := os.Readlink("/proc/self/fd/" + descriptor.Name()); strings.HasPrefix(target, directory+"/") {
			count++
		}
	}
	return count
}
