package kinds_test

import (
	"errors"
	"slices"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// invalidFree: only the start of a live block can be freed, once.
func (s *suite) invalidFree() {
	for _, size := range s.sizes(64 << 20) {
		b := s.malloc(size, 0)
		for _, address := range []uintptr{
			1, base - 512, base + capacity, ^uintptr(0),
			b.Address + 1, b.Address - 1, b.Address + uintptr(b.Size/2), b.Address + uintptr(b.Size),
		} {
			if address != b.Address {
				require.ErrorIs(s.t, s.pool.Free(address), pool.ErrInvalidAddress)
			}
		}
		s.free(b.Address)
		require.ErrorIs(s.t, s.pool.Free(b.Address), pool.ErrInvalidAddress)
		require.NoError(s.t, s.pool.Violation())
	}
}

// huge: sizes that no source has, up to those that overflow when rounded, are refused.
func (s *suite) huge() {
	for _, size := range []uint64{capacity + 1, 1 << 48, 1 << 62, 1 << 63, ^uint64(511), ^uint64(1), ^uint64(0)} {
		_, err := s.pool.Malloc(size, 0)
		require.Error(s.t, err)
		require.NoError(s.t, s.pool.Violation())
	}
	s.malloc(1, 0)
}

// outOfMemory: a full pool refuses, keeps its live blocks, and serves again after a free.
func (s *suite) outOfMemory() {
	size := s.most(128 << 20)
	fill := func() (live []uintptr) {
		for {
			b, err := s.pool.Malloc(size, 0)
			require.NoError(s.t, s.pool.Violation())
			if err != nil {
				require.ErrorIs(s.t, err, pool.ErrOutOfMemory)
				return live
			}
			live = append(live, b.Address)
		}
	}
	live := fill()
	require.Greater(s.t, uint64(len(live))*size, uint64(capacity/2), "refused with more than half unused")
	for i := 0; i < len(live); i += 2 {
		s.free(live[i])
		live[i] = s.malloc(size, 0).Address
	}
	for _, address := range slices.Backward(live) {
		s.free(address)
	}
	_, err := s.pool.Trim()
	require.NoError(s.t, err)
	require.Len(s.t, fill(), len(live), "as much as the first time")
}

// sourceRefuses: the pool passes the source's errors on, and works afterwards.
func (s *suite) sourceRefuses() {
	broken := errors.New("the source is broken")
	for _, refusal := range []error{pool.ErrOutOfMemory, broken} {
		for _, size := range s.sizes(64 << 20) {
			s.source.Refuse = refusal
			_, err := s.pool.Malloc(size, 0)
			require.ErrorIs(s.t, err, refusal)
			s.source.Refuse = nil
			s.free(s.malloc(size, 0).Address)
			_, err = s.pool.Trim()
			require.NoError(s.t, err)
			require.NoError(s.t, s.pool.Violation())
		}
	}
}

// sourceRefusesFree: a segment that the source refuses stays in the pool and goes with a later Trim.
func (s *suite) sourceRefusesFree() {
	broken := errors.New("the source is broken")
	for _, size := range s.sizes(64 << 20) {
		b := s.malloc(size, 0)
		s.source.RefuseFree = broken
		if s.traits.Direct > 0 && size >= s.traits.Direct {
			require.ErrorIs(s.t, s.pool.Free(b.Address), broken)
		} else {
			s.free(b.Address)
			_, err := s.pool.Trim()
			require.ErrorIs(s.t, err, broken)
		}
		require.NoError(s.t, s.pool.Violation())
		require.ErrorIs(s.t, s.pool.Destroy(), broken)
		segments, _ := s.source.Held()
		require.Positive(s.t, segments)
		s.source.RefuseFree = nil
		_, err := s.pool.Trim()
		require.NoError(s.t, err)
		segments, _ = s.source.Held()
		require.Zero(s.t, segments)
		require.NoError(s.t, s.pool.Violation())
	}
}

// destroy: live blocks end too, and the pool works again.
func (s *suite) destroy() {
	for range 3 {
		var last pool.Block
		for _, size := range s.sizes(64 << 20) {
			last = s.malloc(size, 0)
			s.free(s.malloc(size, 0).Address)
		}
		require.NoError(s.t, s.pool.Destroy())
		segments, _ := s.source.Held()
		require.Zero(s.t, segments)
		require.ErrorIs(s.t, s.pool.Free(last.Address), pool.ErrInvalidAddress)
		require.NoError(s.t, s.pool.Destroy(), "of an empty pool")
		require.NoError(s.t, s.pool.Violation())
	}
}
