package reclaim

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Adding never waits for a release; settling does, up to its limit.
func TestQueue(t *testing.T) {
	gate := make(chan struct{})
	var released atomic.Int64
	queue := NewQueue(func(n int) error {
		<-gate
		released.Add(int64(n))
		return nil
	})
	queue.Settle(time.Time{}) // nothing there
	queue.Add(1, 2)
	queue.Add(3)
	begin := time.Now()
	queue.Settle(begin.Add(30 * time.Millisecond))
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
	require.Zero(t, released.Load())
	gate <- struct{}{}
	gate <- struct{}{}
	go func() {
		time.Sleep(20 * time.Millisecond)
		gate <- struct{}{}
		queue.Add(4)
	}()
	queue.Settle(time.Time{})
	require.EqualValues(t, 6, released.Load(), "what is added later is not waited for")
	close(gate)
	queue.Drain()
	require.Eventually(t, func() bool { return released.Load() == 10 }, 5*time.Second, time.Millisecond)
}

// What is refused holds nobody up, and is tried again when there is a reason to.
func TestReleaseIsRefused(t *testing.T) {
	var tries, refusals int
	queue := NewQueue(func(int) error {
		if tries++; tries <= refusals {
			return errors.New("no")
		}
		return nil
	})
	refusals = 2
	queue.Add(1)
	queue.Settle(time.Time{})
	require.Equal(t, 1, tries)
	queue.Drain()
	require.Equal(t, 2, tries)
	queue.Add(2)
	queue.Settle(time.Time{})
	require.Equal(t, 4, tries)
	queue.Drain()
	require.Equal(t, 4, tries)
	// Nor does a panic.
	queue = NewQueue(func(int) error { panic("a defect") })
	queue.Add(1)
	queue.Settle(time.Time{})
	queue.Drain()
}
