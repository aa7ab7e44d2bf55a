package kinds_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// blocks: live blocks are apart, aligned and counted, and may be freed in any order.
func (s *suite) blocks() {
	sizes := s.sizes(256 << 20)
	orders := map[string]func(n int) []int{
		"first first": func(n int) []int { return order(n, func(i int) int { return i }) },
		"last first":  func(n int) []int { return order(n, func(i int) int { return n - 1 - i }) },
		"shuffled":    func(n int) []int { return rand.New(rand.NewPCG(1, 2)).Perm(n) },
	}
	for _, free := range orders {
		var live []uintptr
		for _, size := range sizes {
			live = append(live, s.malloc(size, 0).Address)
		}
		for _, i := range free(len(live)) {
			s.free(live[i])
		}
	}
}

func order(n int, at func(int) int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = at(i)
	}
	return list
}

// zero: size 0 and address 0 are nothing.
func (s *suite) zero() {
	require.Zero(s.t, s.malloc(0, 0))
	s.free(0)
	require.Zero(s.t, s.pool.Stats().Mallocs)
	require.Zero(s.t, s.pool.Stats().Frees)
}

// reuse: a program that repeats itself stops asking the source after the first rounds. A best fit among the first
// round's blocks need not be the first round's own.
func (s *suite) reuse() {
	limit := uint64(32 << 20)
	if s.traits.Direct > 0 {
		limit = min(limit, s.traits.Direct-1)
	}
	sizes := s.sizes(limit)
	round := func() {
		var live []uintptr
		for _, size := range sizes {
			live = append(live, s.malloc(size, 0).Address)
		}
		for _, address := range live {
			s.free(address)
		}
	}
	for range 5 {
		round()
	}
	first := s.pool.Stats()
	for range 10 {
		round()
	}
	last := s.pool.Stats()
	require.Equal(s.t, first.Reserved, last.Reserved)
	require.Equal(s.t, first.PeakLive, last.PeakLive)
	require.Equal(s.t, first.SourceMallocs, last.SourceMallocs)
}

// streams: reuse crosses streams only in kinds that do not order by them.
func (s *suite) streams() {
	if !s.traits.StreamOrdered {
		s.t.Skip("the kind does not order by stream")
	}
	for _, size := range s.sizes(64 << 20) {
		first := s.malloc(size, 1)
		s.free(first.Address)
		second := s.malloc(size, 2)
		require.NotEqual(s.t, first.Address, second.Address, "%d bytes of stream 1 went to stream 2", size)
		again := s.malloc(size, 1)
		require.Equal(s.t, first.Address, again.Address, "%d bytes were not reused on their stream", size)
		s.free(second.Address)
		s.free(again.Address)
		_, err := s.pool.Trim()
		require.NoError(s.t, err)
	}
}

// deterministic: two pools with the same past place alike, so that a failure can be replayed.
func deterministic(t *testing.T, first, second *Checked) {
	random := rand.New(rand.NewPCG(3, 4))
	var live []uintptr
	for range 2000 {
		switch n := random.IntN(100); {
		case n < 45 && len(live) > 0:
			i := random.IntN(len(live))
			require.NoError(t, first.Free(live[i]))
			require.NoError(t, second.Free(live[i]))
			live = slices.Delete(live, i, i+1)
		case n < 98:
			size, stream := 1+random.Uint64N(1<<random.IntN(27)), pool.Stream(n%3)
			if first.traits.Largest > 0 {
				size = min(size, first.traits.Largest)
			}
			b, err := first.Malloc(size, stream)
			require.NoError(t, err)
			again, err := second.Malloc(size, stream)
			require.NoError(t, err)
			require.Equal(t, b, again)
			live = append(live, b.Address)
		case n == 98:
			freed, err := first.Trim()
			require.NoError(t, err)
			again, err := second.Trim()
			require.NoError(t, err)
			require.Equal(t, freed, again)
		case random.IntN(10) == 0:
			require.NoError(t, first.Destroy())
			require.NoError(t, second.Destroy())
			live = nil
		}
	}
	require.NoError(t, first.Violation())
	require.Equal(t, first.got.Reserved, second.got.Reserved)
}

// random: any sequence of calls, over a source that fails at times.
func (s *suite) random() {
	for seed := range uint64(6) {
		operations := make([]byte, 3000)
		random := rand.NewChaCha8([32]byte{byte(seed)})
		_, _ = random.Read(operations)
		require.NoError(s.t, Interpret(s.pool, operations), "seed %d", seed)
	}
}
