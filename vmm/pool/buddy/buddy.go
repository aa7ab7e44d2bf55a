// Package buddy splits a root into halves down to the needed size and merges free halves again, the third approach of
// the text on allocators for PyTorch (Knuth, The Art of Computer Programming, volume 1, 2.5), with its slips corrected:
// the root can be freed, capacities need not be 4 GiB or a power of two, and sizes have 64 bits.
package buddy

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"tms/internal/aid/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
)

const (
	leastBlock = 512     // so that every block is aligned like a segment
	mostUnits  = 1 << 30 // in a root; their bits take 256 MiB
)

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	ledger.Base[ledger.Block]        // the owner is a slot
	unit                      uint64 // bytes of the smallest block
	units                     uint64 // in a root
	capacity                  uint64 // of a root, in bytes
	height                    int    // 2^height units hold a root
	largest                   uint64 // bytes of the largest block
	exact                     bool
	tree                      tree
	roots                     []root // by slot
}

type root struct {
	base uintptr // 0 when given back
	free uint64  // units
}

// Detail is what the kind counts beyond pool.Stats, in bytes.
type Detail struct {
	LargestFree uint64 `json:"largest_free_bytes"` // without another root
}

// New makes an empty pool. It ignores streams: a program with several orders its own reuse.
//
//	capacity   bytes of a root, a multiple of min_block; the pool adds one when all are full (4 GiB)
//	min_block  bytes of the smallest block, a power of two from 512 on (1 KiB)
//	exact      give a block's unused end back, as Linux's alloc_pages_exact does: multiples of min_block (false)
//
// Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (pool.Pool, error) {
	p := &Pool{
		capacity: options.Bytes("capacity", 4<<30),
		unit:     options.Bytes("min_block", 1<<10),
		exact:    options.Bool("exact", false),
	}
	if err := options.Err(); err != nil {
		return nil, err
	}
	if p.unit < leastBlock || p.unit&(p.unit-1) != 0 {
		return nil, fmt.Errorf("%w: min_block=%d: give a power of two from %d on", pool.ErrOption, p.unit, leastBlock)
	}
	p.units = p.capacity / p.unit
	if p.units == 0 || p.capacity%p.unit != 0 || p.units > mostUnits {
		return nil, fmt.Errorf("%w: capacity=%d: give 1 to %d times min_block, %d bytes",
			pool.ErrOption, p.capacity, mostUnits, p.unit)
	}
	p.height = bits.Len64(p.units - 1)
	p.largest = p.unit << (bits.Len64(p.units) - 1)
	p.tree = make(tree, p.height+1)
	p.Open(ledger.NewOfBlocks("buddy", source), ledger.Placement[ledger.Block]{Place: p.place, Advice: p.advice,
		Reuse: p.give, Trim: p.trim, Detail: p.detail})
	return p, nil
}

func (p *Pool) advice(size uint64) string {
	if size > p.largest {
		return "give a larger capacity="
	}
	return "free something, ask for less, or give a smaller capacity="
}

func (p *Pool) place(size uint64, _ pool.Stream) (pool.Block, error) {
	if size > p.largest {
		return pool.Block{}, fmt.Errorf("%w: the largest block has %s", pool.ErrTooLarge, readable.Bytes(p.largest))
	}
	count := (size + p.unit - 1) / p.unit
	order := bits.Len64(count - 1)
	unit, found := p.tree.take(order)
	if !found {
		if err := p.grow(); err != nil {
			return pool.Block{}, err
		}
		unit, _ = p.tree.take(order)
	}
	if p.exact {
		p.tree.give(unit+count, 1<<order-count)
	} else {
		count = 1 << order
	}
	slot := unit >> p.height
	r := &p.roots[slot]
	r.free -= count
	address := r.base + uintptr((unit-slot<<p.height)*p.unit)
	b := ledger.Block{Requested: size, Size: count * p.unit, Owner: uint32(slot)}
	return p.Ledger.Enter(address, b, size, b.Size), nil
}

func (p *Pool) grow() error {
	base, err := p.Ledger.Allocate(p.capacity)
	if err != nil {
		return err
	}
	slot := slices.IndexFunc(p.roots, func(r root) bool { return r.base == 0 })
	if slot < 0 {
		slot = len(p.roots)
		p.roots = append(p.roots, root{})
		p.tree.grow(uint64(len(p.roots)))
	}
	p.roots[slot] = root{base: base, free: p.units}
	p.tree.give(uint64(slot)<<p.height, p.units)
	return nil
}

func (p *Pool) give(address uintptr, b ledger.Block) error {
	r := &p.roots[b.Owner]
	unit := uint64(b.Owner)<<p.height + uint64(address-r.base)/p.unit
	count := b.Size / p.unit
	p.tree.give(unit, count)
	r.free += count
	return nil
}

func (p *Pool) detail() any { return Detail{LargestFree: p.tree.largest() * p.unit} }

func (p *Pool) trim() (err error) {
	for slot := range p.roots {
		r := &p.roots[slot]
		if r.base == 0 || r.free < p.units {
			continue
		}
		if failed := p.Ledger.Free(r.base, p.capacity); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		p.tree.withdraw(uint64(slot)<<p.height, p.units)
		*r = root{}
	}
	return err
}
