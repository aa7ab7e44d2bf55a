package slab

// slab is a run of pages cut into objects of one class.
type slab struct {
	base           uintptr
	class          int
	live           int      // objects
	free           []uint32 // numbers of the others; the last freed is reused first
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
