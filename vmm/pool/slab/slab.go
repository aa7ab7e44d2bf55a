// Package slab serves small sizes from slabs of equal objects, after Bonwick, "The Slab Allocator" (1994), the remedy
// for what a buddy allocator loses to powers of two. Device memory needs no constructors.
package slab

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"tms/vmm/pool"
	"tms/vmm/pool/buddy"
	"tms/vmm/pool/internal/ledger"
	"tms/vmm/pool/naive"
)

// Sizes are rounded up to a class: the multiples of 256 bytes, cudaMalloc's alignment, up to 1 KiB, then four to every
// doubling, so less than a fifth of an object is lost.
const (
	granularity  = 256
	linear       = 4                    // classes that are plain multiples
	linearLimit  = linear * granularity // the largest of them
	leastObjects = 8                    // in a slab
	mostPage     = granularity << 32    // so that 32 bits number the objects of a slab
)

// class is a size of object and its slabs. A full slab is on neither list: only its objects lead to it.
type class struct {
	size    uint64   // of an object
	slab    uint64   // bytes
	objects uint64   // in a slab
	partial uint32   // first slab with some objects live, none if there is none
	empty   []uint32 // slabs with no object live; the last serves first
}

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	ledger.Base[ledger.Block]
	pages   pool.Pool // slabs, and blocks larger than any class
	direct  pool.Pool // the same where pages have no room: each its own segment
	bound   uint64    // the largest size that has a class
	keep    int       // empty slabs of a class
	classes []class
	slabs   []slab // by number
	vacant  []uint32
}

// slab is a run of pages cut into objects of one class.
type slab struct {
	base           uintptr
	from           pool.Pool // the run is a block of this pool
	class          int
	live           uint64   // objects
	cut            uint64   // objects handed out so far, the lowest; the slab keeps nothing of the others
	free           []uint32 // numbers of freed objects; the last freed is reused first
	previous, next uint32   // on the list of its class
}

const none = ^uint32(0)

// Owners of blocks that are not objects of a slab.
const (
	ofPages  = none
	ofDirect = none - 1
)

// Detail is what the kind counts beyond pool.Stats.
type Detail struct {
	Slabs      int `json:"slabs"`
	EmptySlabs int `json:"empty_slabs"` // of them, with no object live
}

// New makes an empty pool. It ignores streams: a program with several orders its own reuse.
//
//	max       bytes of the largest object, with pages=buddy at most a 64th of capacity; larger ones are pages (1 MiB)
//	pages     whence slabs come: buddy, a buddy pool with exact sizes, or source, each its own segment (buddy)
//	page      bytes of the smallest slab, a power of two from 512 to 1 TiB; with pages=buddy at most a quarter
//	          of capacity, and larger blocks are rounded up to it (64 KiB; 2 MiB with pages=source)
//	capacity  bytes of a root of the buddy pool; if the source has no room for a root, a slab or a
//	          larger block is its own segment (4 GiB)
//	keep      empty slabs that each class keeps; further ones go back to pages at once (1)
//
// A slab holds at least 8 objects. Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (pool.Pool, error) {
	books := ledger.NewOfBlocks("slab", source)
	direct, err := naive.New(books, nil)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		direct: direct,
		bound:  options.Bytes("max", 1<<20),
		keep:   options.Int("keep", 1),
	}
	from, capacity, page := options.Text("pages", "buddy"), uint64(4<<30), uint64(64<<10)
	switch from {
	case "buddy":
		capacity = options.Bytes("capacity", capacity)
	case "source":
		page = 2 << 20
	default:
		return nil, fmt.Errorf("%w: pages=%q: give buddy or source", pool.ErrOption, from)
	}
	page = options.Bytes("page", page)
	if err := options.Err(); err != nil {
		return nil, err
	}
	if page < 512 || page > mostPage || page&(page-1) != 0 {
		return nil, fmt.Errorf("%w: page=%d: give a power of two from 512 to %d", pool.ErrOption, page,
			uint64(mostPage))
	}
	if p.bound == 0 {
		return nil, fmt.Errorf("%w: max=0: give at least 1", pool.ErrOption)
	}
	if from == "buddy" && (p.bound > capacity/64 || page > capacity/4) {
		return nil, fmt.Errorf("%w: max=%d, page=%d: give at most %d and %d, or a larger capacity",
			pool.ErrOption, p.bound, page, capacity/64, capacity/4)
	}
	p.pages = direct
	if from == "buddy" {
		cut, err := pool.ParseOptions(fmt.Sprintf("capacity=%d,min_block=%d,exact=true", capacity, page))
		if err != nil {
			return nil, err
		}
		if p.pages, err = buddy.New(books, cut); err != nil {
			return nil, err
		}
	}
	p.classes = classes(p.bound, page)
	p.Open(books, ledger.Placement[ledger.Block]{Place: p.place, Reuse: p.reuse, Trim: p.trim, Detail: p.detail,
		Advice: func(uint64) string { return "free something, or ask for less" }})
	return p, nil
}

// place takes an object, or pages. If there is no room, it gives empty slabs and idle segments back, and tries again.
func (p *Pool) place(size uint64, _ pool.Stream) (pool.Block, error) {
	block, owner, err := p.allocate(size)
	if errors.Is(err, pool.ErrOutOfMemory) {
		before := len(p.vacant)
		if freed, _ := p.GiveBack(); freed > 0 || len(p.vacant) > before {
			block, owner, err = p.allocate(size)
		}
	}
	if err != nil {
		return pool.Block{}, err
	}
	b := ledger.Block{Requested: size, Size: block.Size, Owner: owner}
	return p.Ledger.Enter(block.Address, b, size, block.Size), nil
}

func (p *Pool) allocate(size uint64) (pool.Block, uint32, error) {
	if size <= p.bound {
		return p.object(classOf(size))
	}
	if block, err := p.pages.Malloc(size, 0); err == nil {
		return block, ofPages, nil
	}
	block, err := p.direct.Malloc(size, 0)
	return block, ofDirect, err
}

// object takes an object of a class.
func (p *Pool) object(number int) (pool.Block, uint32, error) {
	c := &p.classes[number]
	if c.partial == none {
		if len(c.empty) == 0 {
			if err := p.grow(c, number); err != nil {
				return pool.Block{}, 0, err
			}
		}
		last := len(c.empty) - 1
		p.push(&c.partial, c.empty[last])
		c.empty = c.empty[:last]
	}
	owner := c.partial
	s := &p.slabs[owner]
	object := s.cut
	if last := len(s.free) - 1; last >= 0 {
		object = uint64(s.free[last])
		s.free = s.free[:last]
	} else {
		s.cut++
	}
	if s.live++; s.live == c.objects {
		p.unlink(&c.partial, owner)
	}
	return pool.Block{Address: s.base + uintptr(object*c.size), Size: c.size}, owner, nil
}

// grow gives a class an empty slab, from pages or, if the source has no room for more pages, as its own segment.
func (p *Pool) grow(c *class, number int) error {
	from := p.pages
	run, err := from.Malloc(c.slab, 0)
	if errors.Is(err, pool.ErrOutOfMemory) {
		from = p.direct
		run, err = from.Malloc(c.slab, 0)
	}
	if err != nil {
		return err
	}
	var owner uint32
	if last := len(p.vacant) - 1; last >= 0 {
		owner = p.vacant[last]
		p.vacant = p.vacant[:last]
	} else {
		owner = uint32(len(p.slabs))
		p.slabs = append(p.slabs, slab{})
	}
	p.slabs[owner] = slab{base: run.Address, from: from, class: number}
	c.empty = append(c.empty, owner)
	return nil
}

func (p *Pool) reuse(address uintptr, b ledger.Block) error {
	switch b.Owner {
	case ofPages:
		return p.pages.Free(address)
	case ofDirect:
		return p.direct.Free(address)
	default:
		p.give(address, b.Owner)
		return nil
	}
}

// give takes an object back into its slab.
func (p *Pool) give(address uintptr, owner uint32) {
	s := &p.slabs[owner]
	c := &p.classes[s.class]
	s.free = append(s.free, uint32(uint64(address-s.base)/c.size))
	if s.live == c.objects {
		p.push(&c.partial, owner)
	}
	if s.live--; s.live > 0 {
		return
	}
	p.unlink(&c.partial, owner)
	if len(c.empty) < p.keep || p.release(owner) != nil { // if the source refuses, the slab stays like the others
		c.empty = append(c.empty, owner)
	}
}

// release gives an empty slab back to pages.
func (p *Pool) release(owner uint32) error {
	if err := p.slabs[owner].from.Free(p.slabs[owner].base); err != nil {
		return err
	}
	p.slabs[owner] = slab{}
	p.vacant = append(p.vacant, owner)
	return nil
}

func (p *Pool) detail() any {
	d := Detail{Slabs: len(p.slabs) - len(p.vacant)}
	for i := range p.classes {
		d.EmptySlabs += len(p.classes[i].empty)
	}
	return d
}

func (p *Pool) trim() (err error) {
	for i := range p.classes {
		c := &p.classes[i]
		c.empty = slices.DeleteFunc(c.empty, func(owner uint32) bool {
			failed := p.release(owner)
			err = errors.Join(err, failed)
			return failed == nil
		})
	}
	for _, under := range []pool.Pool{p.pages, p.direct} {
		_, failed := under.Trim()
		err = errors.Join(err, failed)
	}
	return err
}

func (p *Pool) push(head *uint32, number uint32) {
	s := &p.slabs[number]
	s.previous, s.next = none, *head
	if *head != none {
		p.slabs[*head].previous = number
	}
	*head = number
}

func (p *Pool) unlink(head *uint32, number uint32) {
	s := &p.slabs[number]
	if s.next != none {
		p.slabs[s.next].previous = s.previous
	}
	if s.previous != none {
		p.slabs[s.previous].next = s.next
	} else {
		*head = s.next
	}
}

// classOf returns the number of the class of a size above 0.
func classOf(size uint64) int {
	if size <= linearLimit {
		return int((size - 1) / granularity)
	}
	doubling := bits.Len64(size - 1) // 2^(doubling-1) < size <= 2^doubling
	quarter := (size - 1) >> (doubling - 3) & 3
	return linear + (doubling-bits.Len64(linearLimit))*4 + int(quarter)
}

// classSize returns the size of a class's objects.
func classSize(number int) uint64 {
	if number < linear {
		return uint64(number+1) * granularity
	}
	number -= linear
	return uint64(number%4+5) << (number/4 + bits.Len64(granularity) - 1)
}

// classes makes the classes for up to bound bytes, in slabs of at least a page.
func classes(bound, page uint64) []class {
	list := make([]class, classOf(bound)+1)
	for i := range list {
		size := classSize(i)
		list[i] = class{size: size, slab: page, partial: none}
		for list[i].slab < leastObjects*size {
			list[i].slab *= 2
		}
		list[i].objects = list[i].slab / size
	}
	return list
}
