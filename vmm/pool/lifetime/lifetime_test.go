package lifetime_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/lifetime"
)

// source has no lock, as the real ones: the race detector sees a call that the pool's lock does not cover.
type source struct {
	*pool.Range
	events     int
	closed     int
	refuse     error // what Close answers
	refuseFree error
}

func newSource() *source { return &source{Range: pool.NewRange(0x7f00_0000_0200, 64<<30)} }

func (s *source) Free(address uintptr, size uint64) error {
	if s.refuseFree != nil {
		return s.refuseFree
	}
	return s.Range.Free(address, size)
}

func (*source) Reserve(*pool.Room) bool     { return true }
func (*source) Coalesces(_, _ uintptr) bool { return true }

func (s *source) Memory() (free, total uint64, err error) { return 1 << 30, 64 << 30, nil }

func (s *source) Record(pool.Stream) (pool.Event, error) {
	s.events++
	return pool.Event(s.events), nil
}

func (s *source) Query(pool.Event) (bool, error) { return true, nil }
func (s *source) Synchronize(pool.Event) error   { return nil }

func (s *source) Destroy(pool.Event) error {
	s.events--
	return nil
}

func (s *source) Ordinal() int { return 0 }

func (s *source) Close() error {
	s.closed++
	return s.refuse
}

func open(t *testing.T, kind string, s *source) *lifetime.Pool {
	t.Helper()
	p, err := lifetime.New(s, func(from pool.Source) (pool.Pool, error) { return kinds.New(kind, from, nil) })
	require.NoError(t, err)
	return p
}

func requireEnded(t *testing.T, p *lifetime.Pool, s *source) {
	t.Helper()
	require.Zero(t, s.Held(), "segments are left at the source")
	require.Equal(t, 1, s.closed)
	require.ErrorIs(t, p.Use(func(pool.Pool) error { panic("it is gone") }), pool.ErrDestroyed)
	require.ErrorIs(t, p.Destroy(), pool.ErrDestroyed)
}

// TestDestroyBesideOtherThreads: the threads go on until they get the error, and leave nothing behind.
func TestDestroyBesideOtherThreads(t *testing.T) {
	for _, kind := range kinds.Names() {
		t.Run(kind, func(t *testing.T) {
			for round := range hermetic.Often(20, 4) {
				s := newSource()
				p := open(t, kind, s)
				var started, done sync.WaitGroup
				for thread := range 4 {
					started.Add(1)
					done.Go(func() {
						var err error
						for step := 0; err == nil; step++ {
							err = p.Use(func(p pool.Pool) error {
								block, err := p.Malloc(uint64(1+step%7)*700<<10, pool.Stream(thread))
								if err == nil && step%3 == 0 {
									err = p.Free(block.Address)
								}
								if err == nil && step%20 == 19 {
									_, err = p.Trim()
								}
								if errors.Is(err, pool.ErrOutOfMemory) {
									err = nil // there will be memory, or an end
								}
								return err
							})
							if step == 5+round {
								started.Done()
							}
						}
						assert.ErrorIs(t, err, pool.ErrDestroyed)
					})
				}
				started.Wait()
				destroyed := make(chan error, 2)
				for range cap(destroyed) {
					go func() { destroyed <- p.Destroy() }()
				}
				first, second := <-destroyed, <-destroyed
				require.ErrorIs(t, errors.Join(first, second), pool.ErrDestroyed)
				require.True(t, first == nil || second == nil, "one of two")
				done.Wait()
				requireEnded(t, p, s)
			}
		})
	}
}

// TestAMallocThatLosesTheRace: its pool is destroyed between its request and the source's answer.
func TestAMallocThatLosesTheRace(t *testing.T) {
	for _, kind := range kinds.Names() {
		s := newSource()
		p := open(t, kind, s)
		require.ErrorIs(t, p.Use(func(inner pool.Pool) error {
			require.NoError(t, p.Destroy())
			_, err := inner.Malloc(1000, 0)
			return err
		}), pool.ErrDestroyed)
		requireEnded(t, p, s)
	}
}

// TestAfterARefusalThePoolIsThere: a later Destroy ends it.
func TestAfterARefusalThePoolIsThere(t *testing.T) {
	broken := errors.New("the source is broken")
	for _, kind := range kinds.Names() {
		s := newSource()
		p := open(t, kind, s)
		malloc := func() error {
			return p.Use(func(p pool.Pool) error {
				_, err := p.Malloc(1000, 0)
				return err
			})
		}
		require.NoError(t, malloc())
		s.refuseFree = broken
		require.ErrorIs(t, p.Destroy(), broken)
		require.Zero(t, s.closed)
		s.refuseFree = nil
		require.NoError(t, malloc())
		s.refuse = broken
		require.ErrorIs(t, p.Destroy(), broken)
		s.refuse, s.closed = nil, 0
		require.NoError(t, malloc())
		require.NoError(t, p.Destroy())
		requireEnded(t, p, s)
	}
}

func TestAKindThatRefuses(t *testing.T) {
	s := newSource()
	_, err := lifetime.New(s, func(from pool.Source) (pool.Pool, error) { return kinds.New("heap", from, nil) })
	require.ErrorIs(t, err, pool.ErrOption)
	require.Zero(t, s.closed)
}

func TestHandles(t *testing.T) {
	var handles lifetime.Handles
	for _, never := range []uintptr{0, 1, 0x12345} {
		_, err := handles.Pool(never)
		require.ErrorIs(t, err, lifetime.ErrNoPool)
		require.ErrorIs(t, handles.Destroy(never), lifetime.ErrNoPool)
	}
	first, second := newSource(), newSource()
	a, b := open(t, "naive", first), open(t, "naive", second)
	one, two := handles.Add(a), handles.Add(b)
	require.NotEqual(t, one, two)
	requireAt := func(handle uintptr, want *lifetime.Pool) {
		t.Helper()
		got, err := handles.Pool(handle)
		require.NoError(t, err)
		require.Same(t, want, got)
	}
	requireAt(one, a)
	requireAt(two, b)

	first.refuse = errors.New("not now")
	require.ErrorIs(t, handles.Destroy(one), first.refuse)
	requireAt(one, a) // as before
	first.refuse = nil
	require.NoError(t, handles.Destroy(one))
	_, err := handles.Pool(one)
	require.ErrorIs(t, err, pool.ErrDestroyed)
	require.ErrorIs(t, handles.Destroy(one), pool.ErrDestroyed)
	require.NotEqual(t, one, handles.Add(a), "a number is not used again")
}
