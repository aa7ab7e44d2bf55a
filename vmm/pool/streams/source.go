package streams

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"tms/internal/aid/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
)

// shared is what all parts have in common. The pools of the parts call it under their own locks.
type shared struct {
	whole     ledger.Whole
	directory pool.Directory[*part]

	mu      sync.Mutex
	under   pool.DeviceSource
	account ledger.Account
	limited bool
	allowed uint64
}

func (s *shared) stats() pool.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Stats()
}

// part is a pool of the kind, and its source: a stream's, whose segments lie in a room of their own, or a graph's. A
// graph's part keeps the segments that its pool gives back, for later ones of the same size, until the graphs are gone.
type part struct {
	*shared
	pool     pool.Pool
	stream   pool.Stream // 0 for a graph's
	room     *pool.Room
	returned map[uint64][]uintptr // by the pool, addresses by size; nil for a stream's
}

// newPart makes a part.
func (p *Pool) newPart(stream pool.Stream, returned map[uint64][]uintptr) (*part, error) {
	made := &part{shared: p.source, stream: stream, returned: returned}
	var err error
	made.pool, err = p.fresh(made)
	return made, err
}

func (p *part) Whole() *ledger.Whole { return &p.whole }

// Allocate is pool.Source.Allocate. Errors: also pool.ErrOutOfMemory beyond the memory fraction.
func (p *part) Allocate(size uint64) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if returned := p.returned[size]; len(returned) > 0 {
		p.returned[size] = returned[:len(returned)-1]
		return returned[len(returned)-1], nil
	}
	p.under.Reserve(p.room)
	if held := p.account.Stats().Reserved; p.limited && (size > p.allowed || held > p.allowed-size) {
		p.account.CountSourceFailure()
		return 0, fmt.Errorf("%w: a segment of %s, where the memory fraction allows %s and %s are held",
			pool.ErrOutOfMemory, readable.Bytes(size), readable.Bytes(p.allowed), readable.Bytes(held))
	}
	address, err := p.account.Allocate(size)
	if err == nil {
		p.directory.Enter(address, size, p)
	}
	return address, err
}

func (p *part) Free(address uintptr, size uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.returned != nil {
		p.returned[size] = append(p.returned[size], address)
		return nil
	}
	return p.giveBack(address, size)
}

// giveBack frees a segment. The caller holds p.mu.
func (p *part) giveBack(address uintptr, size uint64) error {
	err := p.account.Free(address, size)
	if err == nil {
		p.directory.Remove(address)
	}
	return err
}

func (p *part) Memory() (free, total uint64, err error) { return p.under.Memory() }

// Reserve is pool.Coalescer.Reserve. A graph's segments have no room, and do not coalesce.
func (p *part) Reserve(room *pool.Room) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.returned != nil {
		return false
	}
	p.room = room
	return p.under.Reserve(room)
}

func (p *part) Coalesces(below, above uintptr) bool { return p.under.Coalesces(below, above) }

// Empty reports whether the part has no segments.
func (p *part) Empty() bool {
	reserved := p.pool.Stats().Reserved
	p.mu.Lock()
	defer p.mu.Unlock()
	return reserved == 0 && len(p.returned) == 0
}

// segments lists the segments, with those that its pool has returned.
func (p *part) segments() []pool.Segment {
	list := p.pool.Snapshot()
	p.mu.Lock()
	defer p.mu.Unlock()
	for size, addresses := range p.returned {
		for _, address := range addresses {
			list = append(list, pool.Fill([]pool.Segment{{Address: address, Size: size, Type: "large"}}, nil)...)
		}
	}
	return list
}

// trim gives back what the pool does not need, and the returned segments. Those that the source refuses stay.
func (p *part) trim() error {
	_, failed := p.pool.Trim()
	p.mu.Lock()
	defer p.mu.Unlock()
	for size, addresses := range p.returned {
		p.returned[size] = slices.DeleteFunc(addresses, func(address uintptr) bool {
			err := p.giveBack(address, size)
			failed = errors.Join(failed, err)
			return err == nil
		})
		if len(p.returned[size]) == 0 {
			delete(p.returned, size)
		}
	}
	return failed
}
