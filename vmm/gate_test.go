package vmm_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/vmm"
)

// A gated pause is over when nothing is left that it has paused, also if the driver kept the memory of an allocation
// that was freed during the pause, and that memory serves a later allocation.
func TestGatedSlack(t *testing.T) {
	sim, _, e := simulated(t, 1)
	e.CheckInvariants(true)
	var gated []bool
	vmm.HostOf(e).SetGated(func(now bool) { gated = append(gated, now) })
	r := vmm.Request{Size: 2 * mib, Tag: "t"}
	all := mallocs(t, e, 3, r)
	o := vmm.Options{ExtentBytes: 64 * mib}
	cycle(t, e, o) // one extent for the three
	sim.Fail("cuMemRelease", 1, 999)
	require.Error(t, pause(e, vmm.Options{Gated: true}))
	require.True(t, e.Records().Gated())
	frees(t, e, all[1])
	require.NoError(t, resume(e, o))
	require.False(t, e.Records().Gated())
	require.Equal(t, all[1], malloc(t, e, r), "the slack")
	frees(t, e, malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "other"}))
	require.False(t, e.Records().Gated())
	require.NoError(t, pause(e, vmm.Options{Gated: true}))
	require.NoError(t, resume(e, o))
	require.False(t, e.Records().Gated())
	require.Equal(t, []bool{true, false, true, false}, gated)
}

// A pause does not wait for threads that allocate without end: here the driver is never without a request.
func TestLaterAllocationsAreNotAwaited(t *testing.T) {
	_, _, e := simulated(t, 1)
	var last chan struct{}
	var lock sync.Mutex
	ended, begun := make(chan struct{}), make(chan struct{})
	defer at("cuMemCreate", func() error { // ends when the next has begun
		next := make(chan struct{})
		lock.Lock()
		if last == nil {
			close(begun)
		} else {
			close(last)
		}
		last = next
		lock.Unlock()
		select {
		case <-next:
		case <-ended:
		}
		return nil
	})()
	var allocate sync.WaitGroup
	for range 2 {
		allocate.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if a, err := e.Malloc(vmm.Request{Size: 4 * mib, Tag: "t"}); assert.NoError(t, err) {
					assert.NoError(t, e.Free(a, false))
				}
			}
		})
	}
	<-begun
	waited := make(chan struct{})
	go func() { e.AwaitAllocations(time.Now().Add(time.Hour)); close(waited) }()
	require.Eventually(t, func() bool {
		select {
		case <-waited:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	close(ended)
	allocate.Wait()
}

// A pause that has stopped the program's threads takes what one of them was just allocating, too.
func TestAllocationsAreAwaited(t *testing.T) {
	_, _, e := simulated(t, 1)
	r := vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost}
	first, second := malloc(t, e, r), uintptr(0)
	asked, answer := make(chan struct{}), make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	defer at("cuMemCreate", func() error { ask(); <-answer; return nil })()
	open := sync.OnceFunc(func() { close(answer) })
	defer open()
	made, waited := make(chan error), make(chan struct{})
	go func() {
		a, err := e.Malloc(r)
		second = a
		made <- err
	}()
	<-asked
	go func() { e.AwaitAllocations(time.Now().Add(time.Hour)); close(waited) }()
	e.AwaitAllocations(time.Now())
	select {
	case <-waited:
		require.Fail(t, "the driver has not answered")
	default:
	}
	open()
	require.NoError(t, <-made)
	<-waited
	freed, err := e.Pause(vmm.Options{Gated: true})
	require.NoError(t, err)
	require.EqualValues(t, 8*mib, freed)
	require.NoError(t, resume(e, vmm.Options{}))
	frees(t, e, first, second)
}
