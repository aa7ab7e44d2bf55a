package slab

import "tms/vmm/pool"

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
