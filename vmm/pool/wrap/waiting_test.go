package wrap_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/wrap"
)

// waiting is a pool whose mallocs, but for the first, wait for a free.
type waiting struct {
	pool.Pool
	first chan struct{} // has one
	waits chan struct{}
	freed chan struct{}
}

func (w *waiting) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	select {
	case <-w.first:
	default:
		close(w.waits)
		<-w.freed
	}
	return w.Pool.Malloc(size, stream)
}

func (w *waiting) Free(address uintptr) error {
	defer close(w.freed)
	return w.Pool.Free(address)
}

func TestAMallocThatWaitsForAFreeDoesNotHoldItUp(t *testing.T) {
	for name, around := range map[string]func(pool.Pool) pool.Pool{
		"limit":      func(p pool.Pool) pool.Pool { return wrap.NewLimit(p, 1<<20) },
		"log":        func(p pool.Pool) pool.Pool { return wrap.NewLog(p, io.Discard) },
		"statistics": func(p pool.Pool) pool.Pool { return wrap.NewStatistics(p) },
	} {
		t.Run(name, func(t *testing.T) {
			inner := &waiting{beneath(t), make(chan struct{}, 1), make(chan struct{}), make(chan struct{})}
			inner.first <- struct{}{}
			p := around(inner)
			first := malloc(t, p, 1000, 0)
			done := make(chan error)
			go func() {
				_, err := p.Malloc(1000, 0)
				done <- err
			}()
			<-inner.waits
			require.NoError(t, p.Free(first))
			require.NoError(t, <-done)
		})
	}
}
