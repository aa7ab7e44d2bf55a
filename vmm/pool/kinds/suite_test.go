package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// Traits are the ways in which kinds may differ.
type Traits struct {
	// Kind is what Stats calls it.
	Kind string
	// Alignment divides the address of every block, for a source that aligns segments to 512.
	Alignment uint64
	// Largest is the largest size it serves, in bytes, or 0 if no size is too large. A larger size gets ErrTooLarge.
	Largest uint64
	// Direct is the size in bytes from which on a block is a segment of its own, which its free gives back to the
	// source. It is 0 if no block is.
	Direct uint64
	// StreamOrdered: without a Trim between, memory freed on one stream is not reused on another.
	StreamOrdered bool
}

const capacity = 64 << 30 // of a test's source, in bytes

// conforms tests what every pool has in common, with the pools that newPool makes, over sources with room for many
// segments of any kind's default size. With -short, which is for the race detector, it runs only the tests with several
// threads.
func conforms(t *testing.T, newPool func(pool.Source) (pool.Pool, error), traits Traits) {
	fresh := func(t *testing.T) *suite {
		source := NewSource(capacity)
		p, err := newPool(source)
		require.NoError(t, err)
		segments, _ := source.Held()
		require.Zero(t, segments, "a new pool holds nothing yet")
		return &suite{t, Check(p, source, traits), source, traits}
	}
	t.Run("Threads", func(t *testing.T) { fresh(t).threads() })
	if testing.Short() {
		return
	}
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"Blocks", (*suite).blocks},
		{"Zero", (*suite).zero},
		{"Reuse", (*suite).reuse},
		{"Streams", (*suite).streams},
		{"InvalidFree", (*suite).invalidFree},
		{"Huge", (*suite).huge},
		{"OutOfMemory", (*suite).outOfMemory},
		{"SourceRefuses", (*suite).sourceRefuses},
		{"SourceRefusesFree", (*suite).sourceRefusesFree},
		{"Destroy", (*suite).destroy},
		{"Random", (*suite).random},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := fresh(t)
			test.run(s)
			s.end()
		})
	}
	t.Run("Deterministic", func(t *testing.T) { deterministic(t, fresh(t).pool, fresh(t).pool) })
}

// suite is one test's pool.
type suite struct {
	t      *testing.T
	pool   *Checked
	source *Source
	traits Traits
}

// end gives everything back.
func (s *suite) end() {
	s.t.Helper()
	for last := len(s.pool.live) - 1; last >= 0; last-- {
		s.free(uintptr(s.pool.live[last].start))
	}
	_, err := s.pool.Trim()
	require.NoError(s.t, err)
	segments, bytes := s.source.Held()
	require.Zero(s.t, segments, "segments held at the end, of %d bytes", bytes)
	require.NoError(s.t, s.pool.Violation())
}

func (s *suite) malloc(size uint64, stream pool.Stream) pool.Block {
	s.t.Helper()
	block, err := s.pool.Malloc(size, stream)
	require.NoError(s.t, err)
	require.NoError(s.t, s.pool.Violation())
	return block
}

func (s *suite) free(address uintptr) {
	s.t.Helper()
	require.NoError(s.t, s.pool.Free(address))
	require.NoError(s.t, s.pool.Violation())
}

// most returns a size that the kind serves: this one, or its largest.
func (s *suite) most(size uint64) uint64 {
	if s.traits.Largest > 0 {
		return min(size, s.traits.Largest)
	}
	return size
}

// sizes returns sizes on both sides of all sizes to which kinds round, up to a limit.
func (s *suite) sizes(limit uint64) []uint64 {
	var sizes []uint64
	for size := uint64(1); size <= s.most(limit); size *= 2 {
		for _, around := range []uint64{size - 1, size, size + 1, size + size/2} {
			if 0 < around && around <= s.most(limit) {
				sizes = append(sizes, around)
			}
		}
	}
	return sizes
}
