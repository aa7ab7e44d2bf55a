package snapshot

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"tms/internal/aid/directio"
)

// requests is how many blocks are on their way at once: as many as keep an NVMe disk busy, and at least one for each
// processor, because each of them hashes.
var requests = max(16, runtime.GOMAXPROCS(0))

// buffers has memory for as many blocks.
type buffers chan []byte

func newBuffers() buffers {
	b := make(buffers, requests)
	for range requests {
		b <- nil // made at first need
	}
	return b
}

// each calls do for the numbers below n, on several threads at once, until an error: it returns the first. Each call
// has a buffer of BlockSize, which calls of each that share buffers share.
func (b buffers) each(ctx context.Context, n int, do func(i int, buffer []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(n, requests) {
		running.Go(func() {
			buffer := <-b
			defer func() { b <- buffer }()
			if buffer == nil {
				buffer = directio.Buffer(BlockSize)
			}
			for i := int(next.Add(1) - 1); i < n && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				if err := do(i, buffer); err != nil {
					cancel(err)
				}
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
