package store

import (
	"sync"
	"sync/atomic"
	"time"

	"tms/vmm/reclaim"
)

// extent is memory behind a descriptor. It is given back when the last contents that reach into it are discarded.
type extent struct {
	size     uint64
	number   uint64       // by which Descriptors keeps the descriptor; 0 if there is none
	contents atomic.Int64 // that reach into it
}

func (e *extent) common() *extent { return e }

// medium is an extent with what its store knows of it: a file of Disk, or a chunk of Peer.
type medium interface {
	comparable
	common() *extent
	// release gives the extent back. After an error it can be called again.
	release() error
	// trim returns the way to give back a part whose contents were discarded before others in the extent; nil if there
	// is none.
	trim(part Range) (give func() error)
}

// holder is what Disk and Peer have in common: it keeps extents, and gives them back.
type holder struct {
	Descriptors Descriptors
	garbage     *reclaim.Kind // extents without contents
}

// keep keeps a descriptor as an extent's; the caller closes its own.
func (h *holder) keep(e *extent, descriptor int) error {
	return h.takeOver(e, func() (uint64, error) { return h.Descriptors.Keep(descriptor) })
}

// takeOver takes the number of a descriptor that keep holds now. After an error it drops what may be left of it.
func (h *holder) takeOver(e *extent, keep func() (number uint64, err error)) error {
	number, err := keep()
	if err == nil {
		e.number = number
	} else if number != 0 {
		h.garbage.Add(e.size, func() error { return h.Descriptors.Drop(number) })
	}
	return err
}

// run is the extents that one Save has taken. Contents are placed in it as if they were one, and may lie across
// several.
type run[M medium] struct {
	extents []M
	each    uint64 // bytes of each but the last
}

// place is where contents are: a part of a run. Its zero value is nowhere.
type place[M medium] struct {
	in           *run[M]
	offset, size uint64
}

// walk calls use for each extent that the place reaches into, with the part there, and where that part begins in the
// contents.
func (p place[M]) walk(use func(in M, part Range, from uint64)) {
	for from := uint64(0); p.in != nil && from < p.size; {
		at := p.offset + from
		part := Range{at % p.in.each, min(p.size-from, p.in.each-at%p.in.each)}
		use(p.in.extents[at/p.in.each], part, from)
		from += part.Size
	}
}

// part returns where a part of the contents is.
func (p place[M]) part(part Range) place[M] { return place[M]{p.in, p.offset + part.Offset, part.Size} }

// first returns the first extent that the place reaches into.
func (p place[M]) first() M { return p.in.extents[p.offset/p.in.each] }

// occupy counts the contents of a new place.
func (p place[M]) occupy() {
	p.walk(func(in M, _ Range, _ uint64) { in.common().contents.Add(1) })
}

// leave gives back what the place alone needed, in the background, and reports whether that is anything.
func (p place[M]) leave(garbage *reclaim.Kind) (freed bool) {
	p.walk(func(in M, part Range, _ uint64) {
		if e := in.common(); e.contents.Add(-1) == 0 {
			garbage.Add(e.size, in.release)
			freed = true
		} else if give := in.trim(part); give != nil {
			garbage.Add(part.Size, give)
			freed = true
		}
	})
	return freed
}

// heldContents is contents behind descriptors.
type heldContents[M medium] struct {
	store   Store
	garbage *reclaim.Kind
	size    uint64
	sparse  bool    // the place has parts of the span alone, where they lie in it, and size is theirs
	parts   []Range // of a sparse one

	mu        sync.Mutex
	at        place[M] // where they are, or were until they were discarded
	discarded bool
	freed     bool // the discard has given something back
}

func (c *heldContents[M]) Store() Store  { return c.store }
func (c *heldContents[M]) Bytes() uint64 { return c.size }
func (c *heldContents[M]) Host() uintptr { return 0 }

func (c *heldContents[M]) Discard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.discarded {
		c.discarded, c.freed = true, c.at.leave(c.garbage)
	}
}

func (c *heldContents[M]) Await(until time.Time) {
	c.mu.Lock()
	freed := c.freed
	c.mu.Unlock()
	if freed {
		c.garbage.Await(until)
	}
}

// place returns where the contents are: nowhere once they are discarded.
func (c *heldContents[M]) place() (at place[M]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.discarded {
		at = c.at
	}
	return at
}

// first returns the first extent that the contents reach into, or did.
func (c *heldContents[M]) first() M {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at.first()
}

// move says that the contents are elsewhere from now on, and leaves the place where they were.
func (c *heldContents[M]) move(to place[M]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from := c.at; from != to {
		c.at = to
		from.leave(c.garbage)
	}
}
