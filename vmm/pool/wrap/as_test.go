package wrap_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/wrap"
)

// recorder is a pool that can do more.
type recorder struct {
	pool.Pool
	recorded uintptr
}

func (r *recorder) RecordStream(address uintptr, _ pool.Stream) error {
	r.recorded = address
	return nil
}

func TestAs(t *testing.T) {
	inner := &recorder{Pool: beneath(t)}
	var p pool.Pool = wrap.NewStatistics(wrap.NewLog(wrap.NewLimit(inner, 1<<20), io.Discard))
	found, ok := wrap.As[pool.StreamRecorder](p)
	require.True(t, ok)
	require.NoError(t, found.RecordStream(512, 1))
	require.Equal(t, uintptr(512), inner.recorded)

	_, ok = wrap.As[pool.GraphPools](p)
	require.False(t, ok)
	log, ok := wrap.As[*wrap.Log](p)
	require.True(t, ok)
	require.NoError(t, log.Err())
}
