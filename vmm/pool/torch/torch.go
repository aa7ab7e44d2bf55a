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
	byMemory  map[Memory]streams.Streamed
	all       []entry // in the order in which they were made; an entry never changes
	fractions map[int]float64
	captures  map[int][]pool.GraphPoolID // those that captures allocate from, by device
}

type entry struct {
	Memory
	pool streams.Streamed
}

func (e entry) tag() *string {
	if !e.Pausable {
		return nil
	}
	return new(stats.TagText(e.Request.Tag))
}

// New returns no pools yet. source makes a pool's source; captured reports whether a stream is being captured.
func New(source func(Memory) (pool.DeviceSource, error), captured func(pool.Stream) bool) *Pools {
	return &Pools{source: source, captured: captured, byMemory: map[Memory]streams.Streamed{},
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
func (p *Pools) Of(m Memory) (streams.Streamed, error) {
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
	p.all = append(p.all, entry{m, made})
	return made, nil
}

// make makes a pool with the memory fraction and the captures of the others.
func (p *Pools) make(m Memory) (streams.Streamed, error) {
	from, err := p.source(m)
	if err != nil {
		return nil, err
	}
	made, err := streams.New(from, func(from pool.Source) (pool.Pool, error) {
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

// Malloc is pool.Pool.Malloc from the pool of this memory. Errors: also ErrNotChosen, or the source's.
func (p *Pools) Malloc(m Memory, size uint64, stream pool.Stream) (pool.Block, error) {
	of, err := p.Of(m)
	if err != nil {
		return pool.Block{}, err
	}
	return of.Malloc(size, stream)
}

// Forget drops the pools of a device, whose segments are gone. (cudaDeviceReset)
func (p *Pools) Forget(device int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byMemory, func(m Memory, _ streams.Streamed) bool { return m.Device == device })
	p.all = slices.DeleteFunc(slices.Clone(p.all), func(e entry) bool { return e.Device == device })
}

// made lists the pools.
func (p *Pools) made() []entry {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.all
}

// whose calls f for the pools in turn until one knows the address.
func (p *Pools) whose(f func(streams.Streamed) error) error {
	err := fmt.Errorf("there is no pool yet: %w", pool.ErrInvalidAddress)
	for _, e := range p.made() {
		if err = f(e.pool); !errors.Is(err, pool.ErrInvalidAddress) {
			break
		}
	}
	return err
}

func (p *Pools) Free(address uintptr) error {
	return p.whose(func(p streams.Streamed) error { return p.Free(address) })
}

func (p *Pools) RecordStream(address uintptr, stream pool.Stream) error {
	return p.whose(func(p streams.Streamed) error { return p.RecordStream(address, stream) })
}

// Trim is pool.Pool.Trim of all pools, except those that captures allocate from, as in PyTorch. Errors: the sources'.
func (p *Pools) Trim() (freed uint64, failed error) {
	for _, e := range p.made() {
		bytes, err := e.pool.Trim()
		freed += bytes
		if !errors.Is(err, pool.ErrCapturing) {
			failed = errors.Join(failed, err)
		}
	}
	return freed, failed
}

// on calls f for the pools of a device, and then after if no call failed. No pool can be made until it returns.
func (p *Pools) on(device int, f func(streams.Streamed) error, after func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.all {
		if e.Device == device {
			if err := f(e.pool); err != nil {
				return err
			}
		}
	}
	after()
	return nil
}

// SetMemoryFraction is streams.Streamed.SetMemoryFraction for each pool of a device.
func (p *Pools) SetMemoryFraction(device int, fraction float64) error {
	return p.on(device, func(p streams.Streamed) error { return p.SetMemoryFraction(fraction) },
		func() { p.fractions[device] = fraction })
}

// BeginAllocateToPool is pool.GraphPools.BeginAllocateToPool with the streams that are being captured, for the pools of
// a device, and for those made before the end. Errors: pool.ErrGraphPool.
func (p *Pools) BeginAllocateToPool(device int, id pool.GraphPoolID) error {
	return p.on(device, func(made streams.Streamed) error { return made.BeginAllocateToPool(id, p.captured) },
		func() { p.captures[device] = append(p.captures[device], id) })
}

// EndAllocateToPool is pool.GraphPools.EndAllocateToPool, for the pools of a device. Errors: pool.ErrGraphPool.
func (p *Pools) EndAllocateToPool(device int, id pool.GraphPoolID) error {
	return p.on(device, func(made streams.Streamed) error { return made.EndAllocateToPool(id) }, func() {
		p.captures[device] = slices.DeleteFunc(p.captures[device],
			func(other pool.GraphPoolID) bool { return other == id })
	})
}

// ReleasePool is pool.GraphPools.ReleasePool, for the pools of a device. A pool made after the capture does not know
// the graph, which is no error. Errors: the sources'.
func (p *Pools) ReleasePool(device int, id pool.GraphPoolID) error {
	return p.on(device, func(made streams.Streamed) error {
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
	for _, e := range p.made() {
		all = append(all, Stats{Device: e.Device, Tag: e.tag(), Stats: e.pool.Stats()})
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
	for _, e := range p.made() {
		all = append(all, Snapshot{Device: e.Device, Tag: e.tag(), Segments: e.pool.Snapshot()})
	}
	return all
}

// ResetPeakStats is pool.Pool.ResetPeakStats, of all pools.
func (p *Pools) ResetPeakStats() {
	for _, e := range p.made() {
		e.pool.ResetPeakStats()
	}
}
