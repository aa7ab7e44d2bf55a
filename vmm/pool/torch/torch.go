// Package torch serves PyTorch, which has one allocator for all memory (torch.cuda.memory.CUDAPluggableAllocator). It
// makes a pool for each device and each way of being pausable, at first need, and passes PyTorch's calls on to these.
package torch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/streams"
	"tms/vmm/stats"
)

var (
	ErrNotChosen = cuda.Refuse(cuda.InvalidValue, "no kind of pool is chosen for PyTorch; choose one before it "+
		"allocates, as tms.use_allocator does")

	ErrChosen = cuda.Refuse(cuda.InvalidValue, "it is one choice for the life of a process")
)

// Memory is the kind of memory that a pool's segments are. Each kind has a pool.
type Memory struct {
	Device   int
	Pausable bool        // false: CUDA's own memory
	Request  vmm.Request // for pausable segments; Size, Margin, Context and Capturing are ignored
}

// Pools is safe for use by many threads.
type Pools struct {
	source   func(Memory) (pool.DeviceSource, error)
	captured func(pool.Stream) bool

	mu        sync.RWMutex
	kind      string // "": not chosen yet
	options   string
	byMemory  map[Memory]*Pool
	all       []*Pool // in the order in which they were made
	fractions map[int]float64
	captures  map[int][]pool.GraphPoolID // those that captures allocate from, by device

	directory pool.Directory[*Pool] // of all segments
}

// Pool is the pool of a kind of memory. It never changes.
type Pool struct {
	streams.Streamed
	Memory Memory
}

func (p *Pool) tag() *string {
	if !p.Memory.Pausable {
		return nil
	}
	return new(stats.TagText(p.Memory.Request.Tag))
}

// source notes the segments of a pool in the directory.
type source struct {
	pool.DeviceSource
	directory *pool.Directory[*Pool]
	owner     *Pool
}

func (s *source) Allocate(size uint64) (uintptr, error) {
	address, err := s.DeviceSource.Allocate(size)
	if err == nil {
		s.directory.Enter(address, size, s.owner)
	}
	return address, err
}

// Free is pool.Source.Free. The directory forgets the segment first, because another pool may get the same address at
// once.
func (s *source) Free(address uintptr, size uint64) error {
	noted := s.directory.Remove(address)
	err := s.DeviceSource.Free(address, size)
	if err != nil && noted {
		s.directory.Enter(address, size, s.owner)
	}
	return err
}

// Ordinal returns the device's CUDA ordinal.
func (s *source) Ordinal() int { return s.owner.Memory.Device }

// New returns no pools yet. source makes a pool's source; captured reports whether a stream is being captured.
func New(source func(Memory) (pool.DeviceSource, error), captured func(pool.Stream) bool) *Pools {
	return &Pools{source: source, captured: captured, byMemory: map[Memory]*Pool{},
		fractions: map[int]float64{}, captures: map[int][]pool.GraphPoolID{}}
}

// limitless is a source on which options are tried.
type limitless struct{ *pool.Range }

func (limitless) Memory() (free, total uint64, err error) { return 1 << 50, 1 << 50, nil }

// Use chooses the kind of all pools and its options. A choice may be repeated. Errors: ErrChosen, pool.ErrOption.
func (p *Pools) Use(kind, options string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kind == kind && p.options == options && kind != "" {
		return nil
	}
	if p.kind != "" {
		return fmt.Errorf("this process uses %s for PyTorch already, with the options %q; %w", p.kind, p.options,
			ErrChosen)
	}
	if _, err := fresh(limitless{pool.NewRange(1<<20, 1<<50)}, kind, options); err != nil {
		return err
	}
	p.kind, p.options = kind, options
	return nil
}

func fresh(from pool.Source, kind, options string) (pool.Pool, error) {
	parsed, err := pool.ParseOptions(options)
	if err != nil {
		return nil, err
	}
	return kinds.New(kind, from, parsed)
}

// Of returns the pool of a kind of memory, made at the first call. Errors: ErrNotChosen, or the source's.
func (p *Pools) Of(m Memory) (*Pool, error) {
	m.Request.Size, m.Request.Margin, m.Request.Context, m.Request.Capturing = 0, 0, 0, false
	p.mu.RLock()
	known := p.byMemory[m]
	p.mu.RUnlock()
	if known != nil {
		return known, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.byMemory[m]; known != nil {
		return known, nil
	}
	if p.kind == "" {
		return nil, ErrNotChosen
	}
	made, err := p.make(m)
	if err != nil {
		return nil, err
	}
	p.byMemory[m] = made
	p.all = append(p.all, made)
	return made, nil
}

// make makes a pool with the memory fraction and the captures of the others.
func (p *Pools) make(m Memory) (*Pool, error) {
	from, err := p.source(m)
	if err != nil {
		return nil, err
	}
	made := &Pool{Memory: m}
	made.Streamed, err = streams.New(&source{from, &p.directory, made}, func(from pool.Source) (pool.Pool, error) {
		return fresh(from, p.kind, p.options)
	})
	if err != nil {
		return nil, err
	}
	if fraction, limited := p.fractions[m.Device]; limited {
		if err := made.SetMemoryFraction(fraction); err != nil {
			return nil, err
		}
	}
	for _, id := range p.captures[m.Device] {
		if err := made.BeginAllocateToPool(id, p.captured); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// Malloc is pool.Pool.Malloc from the pool of this memory. Its pool.ErrOutOfMemory has the pool's dump. Errors: also
// ErrNotChosen, or the source's.
func (p *Pools) Malloc(m Memory, size uint64, stream pool.Stream) (pool.Block, error) {
	of, err := p.Of(m)
	if err != nil {
		return pool.Block{}, err
	}
	made, err := of.Malloc(size, stream)
	return made, pool.Explain(of, err)
}

// Forget drops the pools of a device, whose segments are gone. (cudaDeviceReset)
func (p *Pools) Forget(device int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byMemory, func(m Memory, _ *Pool) bool { return m.Device == device })
	p.all = slices.DeleteFunc(slices.Clone(p.all), func(p *Pool) bool { return p.Memory.Device == device })
	p.directory.Drop(func(p *Pool) bool { return p.Memory.Device == device })
}

// allPools lists the pools.
func (p *Pools) allPools() []*Pool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.all
}

// Owner returns the pool in whose segments an address lies, or nil.
func (p *Pools) Owner(address uintptr) *Pool {
	owner, _ := p.directory.Find(address)
	return owner
}

func (p *Pools) Free(address uintptr) error {
	return p.in(address, func(owner *Pool) error { return owner.Free(address) })
}

func (p *Pools) RecordStream(address uintptr, stream pool.Stream) error {
	return p.in(address, func(owner *Pool) error { return owner.RecordStream(address, stream) })
}

// in makes a call to the owner of an address; it ignores 0.
func (p *Pools) in(address uintptr, call func(*Pool) error) error {
	if owner := p.Owner(address); owner != nil {
		return call(owner)
	} else if address == 0 {
		return nil
	}
	return fmt.Errorf("%#x: %w", address, pool.ErrInvalidAddress)
}

// Trim is pool.Pool.Trim of all pools, except those that captures allocate from, as in PyTorch. Errors: the sources'.
func (p *Pools) Trim() (freed uint64, failed error) {
	for _, made := range p.allPools() {
		bytes, err := made.Trim()
		freed += bytes
		if !errors.Is(err, pool.ErrCapturing) {
			failed = errors.Join(failed, err)
		}
	}
	return freed, failed
}

// on calls f for the pools of a device, and then after if no call failed. No pool can be made until it returns.
func (p *Pools) on(device int, f func(*Pool) error, after func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, made := range p.all {
		if made.Memory.Device == device {
			if err := f(made); err != nil {
				return err
			}
		}
	}
	after()
	return nil
}

// SetMemoryFraction is streams.Streamed.SetMemoryFraction for each pool of a device.
func (p *Pools) SetMemoryFraction(device int, fraction float64) error {
	return p.on(device, func(p *Pool) error { return p.SetMemoryFraction(fraction) },
		func() { p.fractions[device] = fraction })
}

// BeginAllocateToPool is pool.GraphPools.BeginAllocateToPool with the streams that are being captured, for the pools of
// a device, and for those made before the end. Errors: pool.ErrGraphPool.
func (p *Pools) BeginAllocateToPool(device int, id pool.GraphPoolID) error {
	return p.on(device, func(made *Pool) error { return made.BeginAllocateToPool(id, p.captured) },
		func() { p.captures[device] = append(p.captures[device], id) })
}

// EndAllocateToPool is pool.GraphPools.EndAllocateToPool, for the pools of a device. Errors: pool.ErrGraphPool.
func (p *Pools) EndAllocateToPool(device int, id pool.GraphPoolID) error {
	return p.on(device, func(made *Pool) error { return made.EndAllocateToPool(id) }, func() {
		p.captures[device] = slices.DeleteFunc(p.captures[device],
			func(other pool.GraphPoolID) bool { return other == id })
	})
}

// ReleasePool is pool.GraphPools.ReleasePool, for the pools of a device. A pool made after the capture does not know
// the graph, which is no error. Errors: the sources'.
func (p *Pools) ReleasePool(device int, id pool.GraphPoolID) error {
	return p.on(device, func(made *Pool) error {
		if err := made.ReleasePool(id); !errors.Is(err, pool.ErrGraphPool) {
			return err
		}
		return nil
	}, func() {})
}

// Stats has the statistics of one pool.
type Stats struct {
	Device int        `json:"device"`
	Tag    *string    `json:"tag"` // nil: not pausable
	Stats  pool.Stats `json:"stats"`
}

// Stats lists the pools in the order in which they were made; never nil.
func (p *Pools) Stats() []Stats {
	all := []Stats{}
	for _, made := range p.allPools() {
		all = append(all, Stats{Device: made.Memory.Device, Tag: made.tag(), Stats: made.Stats()})
	}
	return all
}

// Snapshot has the segments of one pool.
type Snapshot struct {
	Device   int            `json:"device"`
	Tag      *string        `json:"tag"` // nil: not pausable
	Segments []pool.Segment `json:"segments"`
}

// Snapshots lists the pools as Stats does, with their segments; never nil.
func (p *Pools) Snapshots() []Snapshot {
	all := []Snapshot{}
	for _, made := range p.allPools() {
		all = append(all, Snapshot{Device: made.Memory.Device, Tag: made.tag(), Segments: made.Snapshot()})
	}
	return all
}

// ResetPeakStats is pool.Pool.ResetPeakStats, of all pools.
func (p *Pools) ResetPeakStats() {
	for _, made := range p.allPools() {
		made.ResetPeakStats()
	}
}
