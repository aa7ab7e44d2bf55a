package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/control/rights"
)

// A process that is parked goes on when its client says a line, goes, or is silent for its lease.
func TestAParkEnds(t *testing.T) {
	f := serve(t)
	f.pausing("weights", rights.Rest)
	c := dial(t)
	require.True(t, do(t, c, all).OK)
	park := control.SteerRequest{Op: control.Park, User: "anna"}
	require.True(t, do(t, c, park).OK)
	require.False(t, c.Ended())
	require.True(t, do(t, c, status).OK)

	park.Lease = 0.1
	require.True(t, do(t, c, park).OK)
	require.Eventually(t, c.Ended, time.Minute, time.Millisecond)
	f.undone(t, rights.Rest, "weights")

	f.with(func() { f.tasks = nil })
	c = dial(t)
	require.True(t, do(t, c, all).OK)
	park.Lease = 0
	require.True(t, do(t, c, park).OK)
	c.Close()
	f.undone(t, rights.Rest, "weights")
}
