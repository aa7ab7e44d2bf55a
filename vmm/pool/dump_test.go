package pool_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/cuda"
	"tms/vmm/pool"
)

type snapshot struct {
	pool.Pool
	segments []pool.Segment
}

func (s snapshot) Snapshot() []pool.Segment { return s.segments }

func TestTheDumpHasBlocksBySize(t *testing.T) {
	const mib = 1 << 20
	block := func(size uint64, state pool.BlockState) pool.SegmentBlock {
		return pool.SegmentBlock{Size: size, State: state}
	}
	p := snapshot{segments: []pool.Segment{
		{Blocks: []pool.SegmentBlock{block(mib, pool.Allocated), block(2*mib-512, pool.Allocated),
			block(512, pool.Inactive)}},
		{Blocks: []pool.SegmentBlock{block(3*mib, pool.Inactive), block(5*mib, pool.Allocated), block(4*mib, pool.Inactive)}},
	}}
	require.Equal(t, "The pool has segments: 2; blocks in use: the largest has 5.00 MiB, 2 from 1.00 MiB (3.00 MiB), "+
		"1 from 4.00 MiB (5.00 MiB); free blocks: the largest has 4.00 MiB, 1 from 512 bytes (512 bytes), "+
		"1 from 2.00 MiB (3.00 MiB), 1 from 4.00 MiB (4.00 MiB)", pool.Dump(p.segments))
	err := pool.Explain(p, &pool.Refusal{Kind: "bfc", Size: 6 * mib, Cause: pool.ErrOutOfMemory, Advice: "free something"})
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.Equal(t, int(cuda.OutOfMemory), cuda.Code(err))
	require.ErrorContains(t, err, "out of memory; free something. The pool has segments: 2; blocks in use: ")

	p.segments[0].Blocks[0].State = pool.PendingFree
	require.Contains(t, pool.Dump(p.segments), "; freed blocks that streams still use: the largest has 1.00 MiB, "+
		"1 from 1.00 MiB (1.00 MiB); ")
	other := errors.New("the driver is gone")
	require.Equal(t, other, pool.Explain(p, other))
	require.NoError(t, pool.Explain(p, nil))
}
