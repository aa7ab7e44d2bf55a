package backup

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Adding never waits for a release; settling does, up to its limit.
func TestTrash(t *testing.T) {
	gate := make(chan struct{})
	var released atomic.Int64
	trash := newTrash(func(n int) error {
		<-gate
		released.Add(int64(n))
		return nil
	})
	trash.settle(time.Time{}) // nothing there
	trash.add(1, 2)
	trash.add(3)
	begin := time.Now()
	trash.settle(begin.Add(30 * time.Millisecond))
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
	require.Zero(t, released.Load())
	gate <- struct{}{}
	gate <- struct{}{}
	go func() {
		time.Sleep(20 * time.Millisecond)
		gate <- struct{}{}
		trash.add(4)
	}()
	trash.settle(time.Time{})
	require.EqualValues(t, 6, released.Load(), "what is added later is not waited for")
	close(gate)
	trash.drain()
	require.Eventually(t, func() bool { return released.Load() == 10 }, 5*time.Second, time.Millisecond)
}

// What is refused holds nobody up, and is tried again when there is a reason to.
func TestTrashIsRefused(t *testing.T) {
	var tries, refusals int
	trash := newTrash(func(int) error {
		if tries++; tries <= refusals {
			return errors.New("no")
		}
		return nil
	})
	refusals = 2
	trash.add(1)
	trash.settle(time.Time{})
	require.Equal(t, 1, tries)
	trash.drain()
	require.Equal(t, 2, tries)
	trash.add(2)
	trash.settle(time.Time{})
	require.Equal(t, 4, tries)
	trash.drain()
	require.Equal(t, 4, tries)
	// Nor does a panic.
	trash = newTrash(func(int) error { panic("a defect") })
	trash.add(1)
	trash.settle(time.Time{})
	trash.drain()
}
