package kinds_test

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// threads: many threads at once get separate blocks, and the counters are right.
func (s *suite) threads() {
	t, p := s.t, s.pool.pool // without the model, which has no lock
	const count, steps = 8, 2000
	var owners sync.Map // by address of a live block
	work := func(thread uint64) (live []pool.Block, err error) {
		random := rand.New(rand.NewPCG(thread, 1))
		for range steps {
			if len(live) > 0 && random.IntN(2) == 0 {
				i := random.IntN(len(live))
				address := live[i].Address
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
				owners.Delete(address)
				if err := p.Free(address); err != nil {
					return live, err
				}
				continue
			}
			size := 1 + random.Uint64N(1<<random.IntN(25))
			if s.traits.Largest > 0 {
				size = min(size, s.traits.Largest)
			}
			b, err := p.Malloc(size, pool.Stream(thread%3))
			if err != nil {
				return live, err
			}
			if _, twice := owners.LoadOrStore(b.Address, thread); twice {
				return live, fmt.Errorf("%#x was live already", b.Address)
			}
			live = append(live, b)
			if random.IntN(64) == 0 {
				if _, err := p.Trim(); err != nil {
					return live, err
				}
				_ = p.Stats()
			}
		}
		return live, nil
	}
	var all sync.WaitGroup
	lives, errs := make([][]pool.Block, count), make([]error, count)
	for thread := range count {
		all.Go(func() { lives[thread], errs[thread] = work(uint64(thread)) })
	}
	all.Wait()
	var live []span
	var bytes uint64
	for thread, blocks := range lives {
		require.NoError(t, errs[thread])
		for _, b := range blocks {
			at := span{uint64(b.Address), b.Size}
			require.False(t, overlaps(live, at), "%+v overlaps another thread's block", b)
			live = insert(live, at)
			bytes += b.Size
		}
	}
	stats := p.Stats()
	require.Equal(t, uint64(len(live)), stats.Blocks)
	require.Equal(t, bytes, stats.Live)
	require.Equal(t, stats.Blocks, stats.Mallocs-stats.Frees)
	for _, b := range live {
		require.NoError(t, p.Free(uintptr(b.start)))
	}
	_, err := p.Trim()
	require.NoError(t, err)
	stats = p.Stats()
	require.Zero(t, stats.Live+stats.Requested+stats.Blocks+stats.Reserved+stats.Segments)
	segments, _ := s.source.Held()
	require.Zero(t, segments)
	require.NoError(t, s.source.wrong)
}
