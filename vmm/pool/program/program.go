// Package program serves a program's cudaMalloc and cudaFree from pools of one kind. The program does not know of them,
// and may use memory at once in every stream and context. So a block goes back to its pool only after the devices, or
// the stream of a cudaFreeAsync, have finished with it.
package program

import (
	"errors"
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

	mu       sync.Mutex              // never held during other calls
	ordered  map[cuda.Stream][]freed // by cudaFreeAsync, the oldest of each stream first
	deferred []freed                 // while a stream was being captured
}

// freed is a block that its pool holds until the program's work with it is done.
type freed struct {
	address uintptr
	pool    *torch.Pool
	event   cuda.Event // 0: the work is done
}

// New returns no pools yet. source makes a pool's source; capturing reports whether a stream of the process is being
// captured. Errors: pool.ErrOption for an unknown kind, or its options.
func New(kind, options string, engine Engine, source func(torch.Memory) (lifetime.Source, error),
	capturing func() bool) (*Pools, error) {
	p := &Pools{engine: engine, capturing: capturing, ordered: map[cuda.Stream][]freed{}}
	p.pools = torch.New(func(m torch.Memory) (pool.DeviceSource, error) {
		from, err := source(m)
		return &segments{from, p}, err
	}, func(pool.Stream) bool { return false })
	if err := p.pools.Use(kind, options); err != nil {
		return nil, err
	}
	return p, nil
}

// segments is a source. No block in a segment is in use when the segment goes back, so no thread waits for the device
// under a pool's lock.
type segments struct {
	lifetime.Source
	of *Pools
}

func (s *segments) Free(address uintptr, _ uint64) error {
	return s.of.engine.FreeIdle(address, s.of.capturing())
}

// Malloc returns the address of at least size bytes; 0 for size 0. If memory is short it takes back blocks that
// cudaFreeAsync freed, and what other pools do not need. Errors: those of pool.Pool.Malloc.
func (p *Pools) Malloc(m torch.Memory, size uint64) (uintptr, error) {
	p.settle()
	of, err := p.pools.Of(m)
	if err != nil {
		return 0, err
	}
	made, err := of.Malloc(size, anyStream)
	for errors.Is(err, pool.ErrOutOfMemory) && !p.capturing() && p.recover() {
		made, err = of.Malloc(size, anyStream)
	}
	return made.Address, pool.Explain(of, err)
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

// Free gives a block back after the devices have finished their present work. An address outside the pools' segments
// goes to the engine. During a capture the free waits. Errors: pool.ErrInvalidAddress, those of vmm.Engine.Free, or the
// source's, after which the memory is still there.
func (p *Pools) Free(address uintptr) error {
	owner, capturing := p.pools.Owner(address), p.capturing()
	if owner == nil {
		return p.engine.Free(address, capturing)
	}
	err := owner.Hold(address)
	if err != nil {
		return err
	}
	if !capturing {
		err = p.engine.Quiesce(address)
		if err == nil {
			err = owner.Release(address)
		}
		capturing = errors.Is(err, vmm.ErrCapturing) // a capture whose begin the pools did not see
	}
	if capturing {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.deferred = append(p.deferred, freed{address: address, pool: owner})
		return nil
	}
	if err != nil {
		_ = owner.Restore(address) // it is held
	}
	return err
}

// FreeAfter gives a block back after a stream has finished its present work, when a later call sees that. An address
// outside the pools' segments goes to the engine. The stream must not be in a capture. Errors: as Free, and those of
// vmm.Engine.FreeAfter.
func (p *Pools) FreeAfter(address uintptr, stream cuda.Stream) error {
	owner := p.pools.Owner(address)
	if owner == nil {
		return p.engine.FreeAfter(address, stream)
	}
	if err := owner.Hold(address); err != nil {
		return err
	}
	event, err := p.engine.Mark(address, stream)
	if err != nil {
		_ = owner.Restore(address) // it is held
		return err
	}
	p.mu.Lock()
	p.ordered[stream] = append(p.ordered[stream], freed{address, owner, event})
	p.mu.Unlock()
	p.settle()
	return nil
}

// settle gives back the blocks whose streams reached their frees, and returns whether any did and how many are left. It
// asks each stream about the first of those that it has not reached.
func (p *Pools) settle() (back bool, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.capturing() { // a capture forbids queries
		for _, stream := range slices.Collect(maps.Keys(p.ordered)) {
			list := p.ordered[stream]
			delete(p.ordered, stream) // others may settle while isBack releases p.mu
			for len(list) > 0 && p.isBack(&list[0]) {
				list, back = list[1:], true
			}
			if list = append(list, p.ordered[stream]...); len(list) > 0 {
				p.ordered[stream] = list
			}
		}
	}
	for _, list := range p.ordered {
		left += len(list)
	}
	return back, left
}

// isBack gives a block back once its stream has reached its free, and reports whether it has; a later call asks again.
// The caller holds p.mu, which is released for the call.
func (p *Pools) isBack(f *freed) bool {
	p.mu.Unlock()
	defer p.mu.Lock()
	if f.event != 0 && !p.engine.IsDone(f.event) {
		return false
	}
	f.event = 0
	return f.pool.Release(f.address) == nil
}

// FreeDeferred makes the frees that waited for captures, after the last of these.
func (p *Pools) FreeDeferred() {
	p.mu.Lock()
	list := p.deferred
	p.deferred = nil
	p.mu.Unlock()
	for _, f := range list {
		_ = f.pool.Restore(f.address)
		_ = p.Free(f.address) // after an error the block is live
	}
}

// Reset forgets everything of a device, whose segments are gone. (cudaDeviceReset)
func (p *Pools) Reset(device int) {
	p.pools.Forget(device)
	p.mu.Lock()
	defer p.mu.Unlock()
	isGone := func(f freed) bool { return f.pool.Memory.Device == device }
	for stream, list := range p.ordered {
		p.ordered[stream] = slices.DeleteFunc(list, isGone)
	}
	p.deferred = slices.DeleteFunc(p.deferred, isGone)
}

func (p *Pools) Stats() []torch.Stats { return p.pools.Stats() }
