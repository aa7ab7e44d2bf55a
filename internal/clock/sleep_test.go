package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/clock"
)

func TestSleep(t *testing.T) {
	start := time.Now()
	clock.Sleep(20 * time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	start = time.Now()
	clock.Sleep(-time.Hour)
	require.Less(t, time.Since(start), time.Hour)
}
