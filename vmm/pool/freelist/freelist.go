// Package freelist cuts blocks from large buffers and keeps freed ones in lists by exact size, the second approach of
// the text on allocators for PyTorch. It neither splits nor merges: the end of a buffer that was too small is lost.
package freelist

import (
	"errors"
	"fmt"
	"slices"

	"tms/internal/aid/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
)

const granularity = 1024 // sizes are rounded up to a multiple of it

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	ledger.Base[ledger.Block]                     // the owner is a buffer
	capacity                  uint64              // of a buffer, in bytes
	lists                     map[uint64]*[]freed // by size; the block freed last is reused first
	buffers                   []buffer            // by number
	current                   int                 // the buffer from which new blocks are cut, or -1
	blocks                    uint64              // bytes of all blocks, in the ledger and freed
	lost                      uint64              // bytes of the ends of buffers that are not current
}

type buffer struct {
	base uintptr // 0 when given back
	used uint64  // bytes cut off so far
	live int     // blocks
}

type freed struct {
	address uintptr
	buffer  uint32
}

// Detail is what the kind counts beyond pool.Stats, in bytes.
type Detail struct {
	Listed uint64 `json:"listed_bytes"` // freed blocks, each waiting for its own size
	Lost   uint64 `json:"lost_bytes"`   // ends of buffers that were too small for a block
}

// New makes an empty pool. It ignores streams: a program with several orders its own reuse.
//
//	buffer  bytes of a buffer, a multiple of 1 KiB; the largest block (5 GiB)
//
// Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (pool.Pool, error) {
	capacity := options.Bytes("buffer", 5<<30)
	if err := options.Err(); err != nil {
		return nil, err
	}
	if capacity == 0 || capacity%granularity != 0 {
		return nil, fmt.Errorf("%w: buffer=%d: give a multiple of %d", pool.ErrOption, capacity, granularity)
	}
	p := &Pool{
		capacity: capacity,
		lists:    map[uint64]*[]freed{},
		current:  -1,
	}
	p.Open(ledger.NewOfBlocks("freelist", source), ledger.Placement[ledger.Block]{Place: p.place, Advice: p.advice,
		Reuse: p.list, Trim: p.trim, Detail: p.detail})
	return p, nil
}

func (p *Pool) advice(size uint64) string {
	if size > p.capacity {
		return "give a larger buffer="
	}
	return "free something, ask for less, or give a smaller buffer="
}

// place takes a freed block of the size, or cuts one. If the source has no room, it gives idle buffers back and asks
// once more.
func (p *Pool) place(size uint64, _ pool.Stream) (pool.Block, error) {
	if size > p.capacity {
		return pool.Block{}, fmt.Errorf("%w: a buffer has %s", pool.ErrTooLarge, readable.Bytes(p.capacity))
	}
	rounded := (size + granularity - 1) &^ (granularity - 1)
	block, reused := p.reuse(rounded)
	if !reused {
		var err error
		if block, err = p.cut(rounded); err != nil {
			return pool.Block{}, err
		}
	}
	p.buffers[block.buffer].live++
	b := ledger.Block{Requested: size, Size: rounded, Owner: block.buffer}
	return p.Ledger.Enter(block.address, b, size, rounded), nil
}

func (p *Pool) reuse(size uint64) (freed, bool) {
	l := p.lists[size]
	if l == nil || len(*l) == 0 {
		return freed{}, false
	}
	last := len(*l) - 1
	block := (*l)[last]
	*l = (*l)[:last]
	return block, true
}

func (p *Pool) cut(size uint64) (freed, error) {
	if p.current < 0 || p.left(p.current) < size {
		if err := p.grow(); err != nil {
			return freed{}, err
		}
	}
	b := &p.buffers[p.current]
	block := freed{b.base + uintptr(b.used), uint32(p.current)}
	b.used += size
	p.blocks += size
	return block, nil
}

// grow makes a new buffer the current one.
func (p *Pool) grow() error {
	base, err := p.Ledger.Allocate(p.capacity)
	if errors.Is(err, pool.ErrOutOfMemory) {
		if freed, _ := p.GiveBack(); freed > 0 {
			base, err = p.Ledger.Allocate(p.capacity)
		}
	}
	if err != nil {
		return err
	}
	if p.current >= 0 {
		p.lost += p.left(p.current)
	}
	p.current = slices.IndexFunc(p.buffers, func(b buffer) bool { return b.base == 0 })
	if p.current < 0 {
		p.current = len(p.buffers)
		p.buffers = append(p.buffers, buffer{})
	}
	p.buffers[p.current] = buffer{base: base}
	return nil
}

// left returns the bytes at a buffer's end that are not cut yet.
func (p *Pool) left(number int) uint64 { return p.capacity - p.buffers[number].used }

func (p *Pool) list(address uintptr, b ledger.Block) error {
	l := p.lists[b.Size]
	if l == nil {
		l = new([]freed)
		p.lists[b.Size] = l
	}
	*l = append(*l, freed{address, b.Owner})
	p.buffers[b.Owner].live--
	return nil
}

func (p *Pool) detail() any { return Detail{Listed: p.blocks - p.Ledger.Stats().Live, Lost: p.lost} }

// trim goes through all lists once, unless no buffer is idle.
func (p *Pool) trim() (err error) {
	idle := 0
	for i := range p.buffers {
		b := &p.buffers[i]
		if b.base == 0 || b.live > 0 {
			continue
		}
		if failed := p.Ledger.Free(b.base, p.capacity); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		idle++
		p.blocks -= b.used
		if p.current == i {
			p.current = -1
		} else {
			p.lost -= p.left(i)
		}
		*b = buffer{}
	}
	if idle == 0 {
		return err
	}
	for size, l := range p.lists {
		*l = slices.DeleteFunc(*l, func(f freed) bool { return p.buffers[f.buffer].base == 0 })
		if len(*l) == 0 {
			delete(p.lists, size)
		}
	}
	return err
}
