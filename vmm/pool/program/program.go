// Package program serves a program's cudaMalloc and cudaFree from pools of one kind. The program does not know of them,
// and may use memory at once in every stream and context. So a block goes back to its pool only after the devices, or
// the stream of a cudaFreeAsync, have finished with it.
package program

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/lifetime"
	"tms/vmm/pool/torch"
)

// anyStream is the stream of all blocks: a pool has one order for them, that of the calls.
const anyStream = pool.Stream(math.MaxUint64)

// An allocation that finds no memory waits up to patience for a stream to reach the next free, and looks every
// lookOnce. A stream may wait for the very thread that allocates, so the wait must end.
const (
	patience = time.Second
	lookOnce = time.Millisecond
)

// Engine is a *vmm.Engine.
type Engine interface {
	Quiesce(address uintptr) error
	Mark(address uintptr, stream cuda.Stream) (cuda.Event, error)
	IsDone(event cuda.Event) bool
	Free(address uintptr, capturing bool) error
	FreeIdle(address uintptr, capturing bool) error
	FreeAfter(address uintptr, stream cuda.Stream) error
}

// Pools is safe for use by many threads.
type Pools struct {
	engine    Engine
	capturing func() bool
	pools     *torch.Pools

	mu       sync.Mutex      // never held during other calls
	live     map[uintptr]int // blocks: ordinals of devices, by address
	segments map[uintptr]int // likewise
	ordered  []freed         // by cudaFreeAsync, the oldest first
	deferred []freed         // while a stream was being captured
}

// freed is a block on its way back to its pool.
type freed struct {
	address uintptr
	device  int
	stream  cuda.Stream
	event   cuda.Event // 0: the work is done
}

// New returns no pools yet. source makes a pool's source; capturing reports whether a stream of the process is being
// captured. Errors: pool.ErrOption for an unknown kind, or its options.
func New(kind, options string, engine Engine, source func(torch.Memory) (lifetime.Source, error),
	capturing func() bool) (*Pools, error) {
	p := &Pools{engine: engine, capturing: capturing, live: map[uintptr]int{}, segments: map[uintptr]int{}}
	p.pools = torch.New(func(m torch.Memory) (pool.DeviceSource, error) {
		from, err := source(m)
		return &segments{from, p}, err
	}, func(pool.Stream) bool { return false })
	if err := p.pools.Use(kind, options); err != nil {
		return nil, err
	}
	return p, nil
}

// segments is a source that notes its segments. No block in a segment is in use when it goes back, so nobody waits for
// the device under a pool's lock.
type segments struct {
	lifetime.Source
	of *Pools
}

func (s *segments) Allocate(size uint64) (uintptr, error) {
	address, err := s.Source.Allocate(size)
	if err == nil {
		s.of.enter(s.of.segments, address, s.Ordinal())
	}
	return address, err
}

func (s *segments) Free(address uintptr, _ uint64) error {
	err := s.of.engine.FreeIdle(address, s.of.capturing())
	if err == nil {
		s.of.mu.Lock()
		delete(s.of.segments, address)
		s.of.mu.Unlock()
	}
	return err
}

// Malloc returns the address of at least size bytes; 0 for size 0. If memory is short it takes back blocks that
// cudaFreeAsync freed, and what other pools do not need. Errors: those of pool.Pool.Malloc.
func (p *Pools) Malloc(m torch.Memory, size uint64) (uintptr, error) {
	p.settle()
	made, err := p.pools.Malloc(m, size, anyStream)
	for errors.Is(err, pool.ErrOutOfMemory) && !p.capturing() && p.recover() {
		made, err = p.pools.Malloc(m, size, anyStream)
	}
	if err != nil || made.Address == 0 {
		return 0, err
	}
	p.enter(p.live, made.Address, m.Device)
	return made.Address, nil
}

// recover takes back what it can, and reports whether there was anything.
func (p *Pools) recover() bool {
	if freed, _ := p.pools.Trim(); freed > 0 {
		return true
	}
	for start := time.Now(); time.Since(start) < patience; time.Sleep(lookOnce) {
		back, left := p.settle()
		if back || left == 0 {
			return back
		}
	}
	return false
}

// claim removes a block from those that can be freed; false: none begins at the address. Errors: pool.ErrInvalidAddress
// if only a segment of a pool begins there.
func (p *Pools) claim(address uintptr) (device int, ours bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if device, ours = p.live[address]; ours {
		delete(p.live, address)
	} else if _, held := p.segments[address]; held {
		err = fmt.Errorf("%#x: %w", address, pool.ErrInvalidAddress)
	}
	return device, ours, err
}

func (p *Pools) enter(list map[uintptr]int, address uintptr, device int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list[address] = device
}

func (p *Pools) putOff(list *[]freed, f freed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*list = append(*list, f)
}

// Free gives a block back after the devices have finished their present work. An address that is no block's goes to the
// engine. During a capture the free waits. Errors: pool.ErrInvalidAddress, those of vmm.Engine.Free, or the source's,
// after which the memory is still there.
func (p *Pools) Free(address uintptr) error {
	device, ours, err := p.claim(address)
	if err != nil {
		return err
	}
	capturing := p.capturing()
	switch {
	case !ours:
		return p.engine.Free(address, capturing)
	case !capturing:
		err = p.engine.Quiesce(address)
		if err == nil {
			err = p.pools.Free(address)
		}
		capturing = errors.Is(err, vmm.ErrCapturing) // a capture that nobody saw begin
	}
	if capturing {
		p.putOff(&p.deferred, freed{address: address, device: device})
		return nil
	}
	if err != nil {
		p.enter(p.live, address, device)
	}
	return err
}

// FreeAfter gives a block back after a stream has finished its present work, when a later call sees that. An address
// that is no block's goes to the engine. The stream must not be in a capture. Errors: as Free, and those of
// vmm.Engine.FreeAfter.
func (p *Pools) FreeAfter(address uintptr, stream cuda.Stream) error {
	device, ours, err := p.claim(address)
	if err != nil {
		return err
	}
	if !ours {
		return p.engine.FreeAfter(address, stream)
	}
	event, err := p.engine.Mark(address, stream)
	if err != nil {
		p.enter(p.live, address, device)
		return err
	}
	p.putOff(&p.ordered, freed{address, device, stream, event})
	p.settle()
	return nil
}

// settle gives back the blocks whose streams reached their frees, and returns whether any did and how many are left.
func (p *Pools) settle() (back bool, left int) {
	p.mu.Lock()
	if len(p.ordered) == 0 || p.capturing() { // a capture forbids queries
		left = len(p.ordered)
		p.mu.Unlock()
		return false, left
	}
	list := p.ordered
	p.ordered = nil
	p.mu.Unlock()
	var kept []freed
	behind := map[cuda.Stream]bool{} // streams whose later frees are not done either
	for _, f := range list {
		if f.event != 0 && (behind[f.stream] || !p.engine.IsDone(f.event)) {
			behind[f.stream] = true
			kept = append(kept, f)
			continue
		}
		f.event = 0
		if p.pools.Free(f.address) != nil {
			kept = append(kept, f) // the source refused; a later call asks again
			continue
		}
		back = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ordered = append(kept, p.ordered...)
	return back, len(p.ordered)
}

// FreeDeferred makes the frees that waited for captures, after the last of these.
func (p *Pools) FreeDeferred() {
	p.mu.Lock()
	list := p.deferred
	p.deferred = nil
	p.mu.Unlock()
	for _, f := range list {
		p.enter(p.live, f.address, f.device)
		_ = p.Free(f.address) // after an error the block is live
	}
}

// Reset forgets everything of a device, whose segments are gone. (cudaDeviceReset)
func (p *Pools) Reset(device int) {
	p.pools.Forget(device)
	p.mu.Lock()
	defer p.mu.Unlock()
	isGone := func(_ uintptr, of int) bool { return of == device }
	maps.DeleteFunc(p.live, isGone)
	maps.DeleteFunc(p.segments, isGone)
	p.ordered = slices.DeleteFunc(p.ordered, func(f freed) bool { return f.device == device })
	p.deferred = slices.DeleteFunc(p.deferred, func(f freed) bool { return f.device == device })
}

func (p *Pools) Stats() []torch.Stats { return p.pools.Stats() }
