package store

import (
	"cmp"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/reclaim"
)

// Private keeps contents in registered (pinned) huge-page host memory. Touching and pinning it are the expensive part.
type Private struct {
	driver  *cuda.Driver
	garbage *reclaim.Kind // buffers whose last contents were discarded
}

// Measured on a host of 16 cores (docs/design/host-memory.md): more registrars only wait for each other.
const (
	maxRegistration = 4 << 30 // the most that is registered, and copied, at once
	registrars      = 2       // threads that register
)

// NewPrivate returns a store of host memory.
func NewPrivate(driver *cuda.Driver) *Private {
	return &Private{driver: driver, garbage: driver.Reclaim.Kind("host memory")}
}

// privateContents is a span's place in a buffer: inside one registration, or for more than maxRegistration bytes at the
// start of registrations of its own.
type privateContents struct {
	host         *Private
	buffer       *pinnedBuffer // nil: there is nothing to keep
	offset       uint64
	size         uint64
	registration int // the first
	sparse       bool
	parts        []Range // of sparse ones: what is saved of the span, one after the other
}

func (c *privateContents) Store() Store  { return c.host }
func (c *privateContents) Bytes() uint64 { return c.size }
func (c *privateContents) Host() uintptr {
	if c.sparse {
		return 0
	}
	return c.base()
}
func (c *privateContents) base() uintptr { return c.buffer.Base + uintptr(c.offset) }
func (c *privateContents) Discard() {
	c.each(func(registration int, bytes uint64) {
		if c.buffer.Registrations[registration].live.Add(-int64(bytes)) == 0 {
			c.buffer.DiscardRegistration(registration, c.host.garbage)
		}
	})
}

func (c *privateContents) Await(until time.Time) {
	gone := c.buffer != nil
	c.each(func(registration int, _ uint64) { gone = gone && c.buffer.Registrations[registration].live.Load() == 0 })
	if gone {
		c.host.garbage.Await(until)
	}
}

// each calls use with the registrations that the contents lie in, and how many bytes of pages they use there.
func (c *privateContents) each(use func(registration int, bytes uint64)) {
	for left, i := wholePages(c.size), c.registration; c.buffer != nil && left > 0; i++ {
		bytes := min(left, maxRegistration)
		use(i, bytes)
		left -= bytes
	}
}

// Scattered reports whether contents hold more than twice their share of pinned memory, because others beside them have
// gone: saved once more, without these as Saved, they take no more than they need.
func Scattered(contents Contents) (scattered bool) {
	c, ok := contents.(*privateContents)
	if !ok {
		return false
	}
	c.each(func(registration int, _ uint64) {
		r := &c.buffer.Registrations[registration]
		scattered = scattered || 2*uint64(r.live.Load()) < r.Size
	})
	return scattered
}

// packed returns sparse contents as they lie in host memory: the parts one after the other, up to the last.
func (c *privateContents) packed() Item {
	item := Item{Sparse: true, Parts: c.parts}
	if len(c.parts) > 0 {
		item.Span = Span{Address: c.base(), Size: c.parts[len(c.parts)-1].end()}
	}
	return item
}

// copies lists the copies between parts of a span and its place: the host side of each lies in one registration,
// because the driver takes no other. Of sparse contents they are always those of all parts.
func (c *privateContents) copies(span Span, parts ...Range) (copies []spanCopy) {
	into := uint64(c.registration) * maxRegistration
	if !c.sparse {
		return cutCopies(span, c.base(), into, maxRegistration, parts)
	}
	at := uint64(0)
	for i, part := range c.parts {
		back := at - part.Offset // from its place in the span; it may be below 0, and wrap
		base, one := c.base()+uintptr(back), c.parts[i:i+1]
		copies = append(copies, cutCopies(span, base, into+back, maxRegistration, one)...)
		at += part.Size
	}
	return copies
}

// Save is Store's Save.
func (h *Private) Save(job Job, items []Item) ([]Contents, error) {
	contents, fresh, err := h.place(job, items)
	if err != nil {
		return nil, err
	}
	var warm []spanCopy // into memory that is pinned already
	var cold [][]spanCopy
	if fresh != nil {
		cold = make([][]spanCopy, len(fresh.Registrations))
	}
	for i, item := range items {
		c := contents[i].(*privateContents)
		for _, copy := range c.copies(item.Span, item.Parts...) {
			if c.buffer == fresh {
				cold[copy.Piece] = append(cold[copy.Piece], copy)
			} else {
				warm = append(warm, copy)
			}
		}
	}
	if err := h.copyAll(job, fresh, cold, warm); err != nil {
		if fresh != nil {
			fresh.Discard(h.garbage)
		}
		return nil, err
	}
	return contents, nil
}

// Check fails where a budget has too little for these items. Errors: *Shortage.
func (h *Private) Check(budget *Budget, items []Item) error {
	var total uint64
	for _, item := range items {
		if item.Saved == nil {
			total += wholePages(item.Needs())
		}
	}
	if total == 0 {
		return nil
	}
	h.garbage.Drain()
	return budget.Check(total)
}

// place gives every item without Saved contents a place in one fresh buffer; nil if none needs it.
func (h *Private) place(job Job, items []Item) (contents []Contents, fresh *pinnedBuffer, err error) {
	contents = make([]Contents, len(items))
	var placed []*privateContents
	var sizes []uint64 // of registrations
	var total uint64
	sharing := false // the last registration takes further small spans
	for i, item := range items {
		c, needs := &privateContents{host: h, sparse: item.Sparse}, item.Needs()
		if item.Saved != nil {
			c = item.Saved.(*privateContents)
		}
		if item.Sparse {
			c.parts = item.Parts
		}
		if contents[i] = c; item.Saved != nil || needs == 0 {
			continue
		}
		if small := needs < pieceSize; !small || !sharing {
			sizes = append(sizes, 0)
			sharing = small
		}
		c.offset, c.size, c.registration = total, needs, len(sizes)-1
		placed = append(placed, c)
		size := wholePages(needs)
		total += size
		for left := size; ; left -= maxRegistration {
			if left <= maxRegistration {
				sizes[len(sizes)-1] += left
				break
			}
			sizes[len(sizes)-1] = maxRegistration
			sizes = append(sizes, 0)
		}
		sharing = sharing && sizes[len(sizes)-1] < pieceSize
	}
	if len(placed) == 0 {
		return contents, nil, nil
	}
	// Buffers that a resume has just discarded go first: giving back and taking at once costs more than one after the
	// other, and needs twice the memory, perhaps pages that the machine has never used.
	h.garbage.Drain()
	if fresh, err = newPinned(h.driver, job, sizes...); err != nil {
		return nil, nil, err
	}
	for _, c := range placed {
		c.buffer = fresh
		c.each(func(registration int, bytes uint64) { fresh.Registrations[registration].live.Add(int64(bytes)) })
	}
	return contents, fresh, nil
}

// copyAll makes the warm copies, and pins the registrations of a fresh buffer, each followed by its copies. It returns
// the first error, once everything has stopped.
func (h *Private) copyAll(job Job, fresh *pinnedBuffer, cold [][]spanCopy, warm []spanCopy) error {
	var touched chan int
	var touchers sync.WaitGroup
	var failed atomic.Bool
	var touching atomic.Pointer[error]
	workers := 1
	if len(cold) > 0 {
		workers = min(registrars, len(cold))
		touched = make(chan int, len(cold))
		var next atomic.Int64
		pieces := fresh.Pieces()
		for range max(1, min(len(pieces), runtime.NumCPU()-registrars)) {
			touchers.Go(func() {
				if err := guard.Call(func() error {
					for i := int(next.Add(1) - 1); i < len(pieces) && !failed.Load(); i = int(next.Add(1) - 1) {
						if fresh.Touch(pieces[i]) {
							touched <- pieces[i].Registration
						}
					}
					return nil
				}); err != nil {
					failed.Store(true)
					touching.Store(&err)
				}
			})
		}
		go func() {
			touchers.Wait()
			close(touched)
		}()
	}
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			errs <- onCopyStream(h.driver, job, func(c *copyStream) error {
				if w == 0 {
					if err := c.toHost(warm...); err != nil {
						return err
					}
				}
				if touched == nil {
					return nil
				}
				for i := range touched {
					if failed.Load() {
						continue
					}
					if err := fresh.Register(i); err != nil {
						return err
					}
					if err := c.toHost(cold[i]...); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	var first error
	for range workers {
		if err := <-errs; err != nil {
			failed.Store(true)
			first = cmp.Or(first, err)
		}
	}
	touchers.Wait()
	if err := touching.Load(); err != nil && first == nil {
		first = *err
	}
	return first
}

// Load is Store's Load.
func (h *Private) Load(job Job) Loader {
	return newCopyLoader(h.driver, job, (*privateContents).copies, (*copyStream).fromHost)
}
