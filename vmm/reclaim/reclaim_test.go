package reclaim_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm/reclaim"
	"tms/vmm/stats"
)

// Add never waits for a release; Await does, up to its limit.
func TestBackground(t *testing.T) {
	var queue reclaim.Queue
	kind := queue.Kind("memory")
	gate := make(chan struct{})
	var released atomic.Int64
	add := func(n int) {
		kind.Add(uint64(n), func() error {
			<-gate
			released.Add(int64(n))
			return nil
		})
	}
	kind.Await(time.Time{}) // nothing there
	add(1)
	add(2)
	add(3)
	begin := time.Now()
	kind.Await(begin.Add(30 * time.Millisecond))
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
	require.Zero(t, released.Load())
	require.Len(t, queue.Waiting(), 1)
	require.Equal(t, 3, queue.Waiting()[0].Count)
	other := queue.Kind("files")
	other.Add(1, func() error { return nil })
	other.Drain() // kinds do not wait for each other
	gate <- struct{}{}
	gate <- struct{}{}
	go func() {
		time.Sleep(20 * time.Millisecond) // so that Await most likely waits already
		gate <- struct{}{}
		add(4)
	}()
	kind.Await(time.Time{})
	require.EqualValues(t, 6, released.Load(), "what is added later is not waited for")
	close(gate)
	queue.Drain()
	require.Eventually(t, func() bool { return released.Load() == 10 }, time.Minute, time.Millisecond)
	queue.Drain()
	require.Empty(t, queue.Waiting())
}

// Await does not wait at all for what will take much longer than it may wait.
func TestNotWaitedForInVain(t *testing.T) {
	var queue reclaim.Queue
	kind := queue.Kind("memory")
	const size, took, limit = 64 << 20, 20 * time.Millisecond, 5 * time.Second
	for range 2 {
		kind.Add(size, func() error { time.Sleep(took); return nil })
		kind.Drain()
	}
	gate := make(chan struct{})
	kind.Add(2000*size, func() error { <-gate; return nil }) // 40 s, by the two before
	kind.Add(size, func() error { return nil })
	begin := time.Now()
	kind.Await(begin.Add(limit))
	require.Less(t, time.Since(begin), limit)
	require.Len(t, queue.Waiting(), 1)
	close(gate)
	kind.Await(time.Time{}) // without a limit it is
	require.Empty(t, queue.Waiting())

	var released atomic.Bool
	kind.Add(size, func() error { time.Sleep(took); released.Store(true); return nil })
	kind.Await(time.Now().Add(time.Minute)) // what comes in time is
	require.True(t, released.Load())
}

// Refused things hold up no other thing, show in the statistics, and are tried again on request.
func TestRefused(t *testing.T) {
	var queue reclaim.Queue
	kind := queue.Kind("memory")
	var tries, refusals int
	release := func() error {
		if tries++; tries <= refusals {
			return errors.New("busy")
		}
		return nil
	}
	refusals = 3
	kind.Add(5, release)
	kind.Await(time.Time{})
	require.Equal(t, 1, tries)
	require.Equal(t, []stats.Waiting{{What: "memory", Why: "refused: busy", Count: 1, Bytes: 5}}, queue.Waiting())
	kind.Drain()
	require.Equal(t, 2, tries)
	require.Zero(t, queue.Retry(), "it is tried in the background")
	kind.Await(time.Time{})
	require.Equal(t, 3, tries)
	kind.Drain()
	require.Equal(t, 4, tries)
	require.Empty(t, queue.Waiting())
	queue.Drain()
	require.Equal(t, 4, tries)

	queue.Keep("stream", 7, errors.New("no"), release)
	queue.Keep("stream", 8, errors.New("no"), release)
	require.Equal(t, []stats.Waiting{{What: "stream", Why: "refused: no", Count: 2}}, queue.Waiting())
	queue.Forget(7)
	require.Equal(t, 1, queue.Retry())
	require.Zero(t, queue.Retry())

	// A panic is a refusal.
	kind.Add(1, func() error { panic("a defect") })
	kind.Await(time.Time{})
	queue.Drain()
	require.Len(t, queue.Waiting(), 1)
}

// Drain also waits for what another thread is trying again.
func TestDrainWaitsForARetry(t *testing.T) {
	var queue reclaim.Queue
	kind := queue.Kind("memory")
	trying, gate := make(chan struct{}), make(chan struct{})
	var back atomic.Bool
	queue.Keep("memory", 0, errors.New("no"), func() error {
		close(trying)
		<-gate
		back.Store(true)
		return nil
	})
	go queue.Retry()
	<-trying
	time.AfterFunc(20*time.Millisecond, func() { close(gate) })
	kind.Drain()
	require.True(t, back.Load())
}
