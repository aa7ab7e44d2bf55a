package backoff_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/backoff"
)

func TestSleep(t *testing.T) {
	wait := backoff.Backoff{Next: time.Millisecond, Most: 3 * time.Millisecond}
	start := time.Now()
	for _, next := range []time.Duration{2, 3, 3} {
		require.True(t, wait.Sleep(time.Time{}))
		require.Equal(t, next*time.Millisecond, wait.Next)
	}
	require.GreaterOrEqual(t, time.Since(start), 6*time.Millisecond)
	wait = backoff.Backoff{Next: time.Hour, Most: time.Hour}
	require.True(t, wait.Sleep(time.Now().Add(20*time.Millisecond)), "sleeps until the deadline alone")
	require.False(t, wait.Sleep(time.Now()))
}
