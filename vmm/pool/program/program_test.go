package program_test

import (
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/lifetime"
	"tms/vmm/pool/program"
	"tms/vmm/pool/torch"
)

const (
	mib   = 1 << 20
	total = 16 << 30
)

// source has addresses of its own. The program's pools must not ask it for events.
type source struct {
	*pool.Range
	pool.Events
	sizes sync.Map
}

func (s *source) Allocate(size uint64) (uintptr, error) {
	address, err := s.Range.Allocate(size)
	s.sizes.Store(address, size)
	return address, err
}

func (*source) Reserve(*pool.Room) bool                 { return true }
func (*source) Coalesces(_, _ uintptr) bool             { return true }
func (s *source) Memory() (free, all uint64, err error) { return total, total, nil }
func (s *source) Ordinal() int                          { return 0 }
func (s *source) Close() error                          { return nil }

// engine gives segments back to a source; an event is done when it is opened.
type engine struct {
	from      *source
	capturing atomic.Bool
	quiesced  atomic.Int64
	others    atomic.Int64 // frees of what is no block

	mu     sync.Mutex
	events []*atomic.Bool
	asked  int // whether one is done
}

func (e *engine) Quiesce(uintptr) error {
	if e.capturing.Load() {
		return vmm.ErrCapturing
	}
	e.quiesced.Add(1)
	return nil
}

// Mark makes events of stream 1 that are done, and of others that wait.
func (e *engine) Mark(_ uintptr, stream cuda.Stream) (cuda.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	done := new(atomic.Bool)
	done.Store(stream == 1)
	e.events = append(e.events, done)
	return cuda.Event(len(e.events)), nil
}

func (e *engine) IsDone(event cuda.Event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked++
	return e.events[event-1].Load()
}

func (e *engine) open() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, done := range e.events {
		done.Store(true)
	}
}

func (e *engine) Free(uintptr, bool) error {
	e.others.Add(1)
	return nil
}

func (e *engine) FreeIdle(address uintptr, _ bool) error {
	size, _ := e.from.sizes.Load(address)
	return e.from.Free(address, size.(uint64))
}

func (e *engine) FreeAfter(uintptr, cuda.Stream) error { return e.Free(0, false) }

func newPools(t *testing.T, kind string) (*program.Pools, *engine) {
	t.Helper()
	e := &engine{from: &source{Range: pool.NewRange(0x7f00_0000_0200, total)}}
	source := func(torch.Memory) (lifetime.Source, error) { return e.from, nil }
	p, err := program.New(kind, "", e, source, e.capturing.Load)
	require.NoError(t, err)
	return p, e
}

func malloc(t *testing.T, p *program.Pools) uintptr {
	t.Helper()
	address, err := p.Malloc(torch.Memory{Pausable: true}, mib)
	require.NoError(t, err)
	return address
}

func TestWhenABlockComesBack(t *testing.T) {
	p, e := newPools(t, "caching")
	a := malloc(t, p)
	require.NoError(t, p.Free(a))
	require.EqualValues(t, 1, e.quiesced.Load())
	require.ErrorIs(t, p.Free(a), pool.ErrInvalidAddress, "a segment of the pool begins there")
	require.ErrorIs(t, p.Free(a+512), pool.ErrInvalidAddress, "it lies in that segment")
	require.NoError(t, p.Free(1<<20))
	require.EqualValues(t, 1, e.others.Load(), "whether anything begins there the engine knows")
	require.Equal(t, a, malloc(t, p))

	require.NoError(t, p.FreeAfter(a, 2))
	require.ErrorIs(t, p.FreeAfter(a, 2), pool.ErrInvalidAddress)
	b := malloc(t, p)
	require.NotEqual(t, a, b)
	e.open()
	require.NoError(t, p.FreeAfter(b, 1))
	require.Equal(t, a, malloc(t, p))

	e.capturing.Store(true)
	require.NoError(t, p.Free(a))
	c := malloc(t, p)
	require.NotEqual(t, a, c)
	e.capturing.Store(false)
	p.FreeDeferred()
	require.Equal(t, a, malloc(t, p))

	p.Reset(0)
	require.Empty(t, p.Stats())
	others := e.others.Load()
	require.NoError(t, p.Free(a))
	require.Equal(t, others+1, e.others.Load(), "it is no block any more")
}

func TestRefusals(t *testing.T) {
	_, err := program.New("heap", "", nil, nil, nil)
	require.ErrorIs(t, err, pool.ErrOption)
	p, e := newPools(t, "caching")
	_, err = p.Malloc(torch.Memory{}, 1<<62)
	require.Error(t, err)
	var all []uintptr
	for {
		address, err := p.Malloc(torch.Memory{}, 1<<30)
		if err != nil {
			require.ErrorIs(t, err, pool.ErrOutOfMemory)
			break
		}
		all = append(all, address)
	}
	require.Len(t, all, total>>30)
	require.NoError(t, p.FreeAfter(all[0], 2))
	_, err = p.Malloc(torch.Memory{}, 1<<30)
	require.ErrorIs(t, err, pool.ErrOutOfMemory, "its stream does not come to it")
	go e.open()
	_, err = p.Malloc(torch.Memory{}, 1<<30)
	require.NoError(t, err)
}

func TestManyThreads(t *testing.T) {
	for _, kind := range kinds.Names() {
		p, e := newPools(t, kind)
		var owners sync.Map
		var all sync.WaitGroup
		for thread := range 4 {
			all.Go(func() {
				random := rand.New(rand.NewSource(int64(thread)))
				var mine []uintptr
				for range 500 {
					switch what := random.Intn(8); {
					case what < 4 || len(mine) == 0:
						address, err := p.Malloc(torch.Memory{Pausable: true}, uint64(1+random.Intn(mib)))
						if !assert.NoError(t, err) {
							return
						}
						_, taken := owners.LoadOrStore(address, thread)
						assert.False(t, taken, "it is somebody's")
						mine = append(mine, address)
					default:
						address := mine[0]
						mine = mine[1:]
						owners.Delete(address)
						if what == 4 {
							assert.NoError(t, p.FreeAfter(address, cuda.Stream(1+random.Intn(2))))
						} else {
							assert.NoError(t, p.Free(address))
						}
					}
					p.Stats()
				}
				for _, address := range mine {
					owners.Delete(address)
					assert.NoError(t, p.Free(address))
				}
			})
		}
		all.Wait()
		e.open()
		require.NoError(t, p.Free(malloc(t, p)))
		require.Zero(t, p.Stats()[0].Stats.Blocks, kind)
	}
}

// A stream is asked about one of the frees that wait for it, however many there are.
func TestAStreamIsAskedOnce(t *testing.T) {
	p, e := newPools(t, "caching")
	var all []uintptr
	for range 1000 {
		a, err := p.Malloc(torch.Memory{Pausable: true}, 512)
		require.NoError(t, err)
		all = append(all, a)
	}
	for i, a := range all {
		before := e.asked
		require.NoError(t, p.FreeAfter(a, cuda.Stream(2+i%2)))
		require.LessOrEqual(t, e.asked-before, 2)
	}
	before := e.asked
	_, err := p.Malloc(torch.Memory{Pausable: true}, 512)
	require.NoError(t, err)
	require.Equal(t, 2, e.asked-before)
	e.open()
	_, err = p.Malloc(torch.Memory{Pausable: true}, 512)
	require.NoError(t, err)
	require.Equal(t, uint64(2), p.Stats()[0].Stats.Blocks)
}
