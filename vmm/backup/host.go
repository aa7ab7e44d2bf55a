package backup

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"tms/internal/guard"
	"tms/vmm/cuda"
)

// Host keeps contents in registered (pinned) huge-page host memory. Touching and pinning are what
// costs: many threads touch pieces of it, two pin what was touched, and the copies of a unit are issued
// the moment it is pinned.
type Host struct {
	driver  *cuda.Driver
	garbage *trash[*slab] // whose last contents were discarded
}

// Measured on a host of 16 cores (docs/rationale.md): smaller pieces cost more calls, larger ones leave
// threads idle at the ends; more registrars only wait for each other.
const (
	pieceSize  = 32 << 20 // how much a thread touches at a time; spans below it share a registration
	maxUnit    = 4 << 30  // the most that is registered, and copied, at once
	registrars = 2        // threads that register
)

// NewHost returns a store of host memory.
func NewHost(driver *cuda.Driver) *Host {
	return &Host{driver: driver, garbage: newTrash((*slab).release)}
}

// hostContents is a span's place in a slab: inside one unit, or, of more than maxUnit bytes, at the
// start of units of its own.
type hostContents struct {
	host   *Host
	slab   *slab
	offset uint64
	size   uint64
	unit   int // the first
}

func (c *hostContents) Store() Store  { return c.host }
func (c *hostContents) Bytes() uint64 { return c.size }
func (c *hostContents) Host() uintptr { return c.slab.base + uintptr(c.offset) }
func (c *hostContents) Discard() {
	if c.slab.references.Add(-1) == 0 {
		c.host.garbage.add(c.slab)
	}
}

func (c *hostContents) Settle(until time.Time) {
	if c.slab.references.Load() == 0 {
		c.host.garbage.settle(until)
	}
}

// jobs lists the copies between parts of a span and its place.
func (c *hostContents) jobs(span Span, parts ...Range) []copyJob {
	var jobs []copyJob
	for _, part := range parts {
		for at, end := part.Offset, part.Offset+part.Size; at < end; {
			size := min(end-at, maxUnit-at%maxUnit)
			jobs = append(jobs, copyJob{
				device: span.Address + uintptr(at),
				host:   c.slab.base + uintptr(c.offset+at),
				size:   size,
				unit:   c.unit + int(at/maxUnit),
			})
			at += size
		}
	}
	return jobs
}

// Save is Store.Save.
func (h *Host) Save(job Job, items []Item) ([]Contents, error) {
	contents, fresh, err := h.place(job, items)
	if err != nil {
		return nil, err
	}
	var warm []copyJob // into memory that is pinned already
	var cold [][]copyJob
	if fresh != nil {
		cold = make([][]copyJob, len(fresh.units))
	}
	for i, item := range items {
		c := contents[i].(*hostContents)
		for _, copy := range c.jobs(item.Span, item.parts()...) {
			if c.slab == fresh {
				cold[copy.unit] = append(cold[copy.unit], copy)
			} else {
				warm = append(warm, copy)
			}
		}
	}
	if err := h.copyAll(job, fresh, cold, warm); err != nil {
		if fresh != nil {
			h.garbage.add(fresh)
		}
		return nil, err
	}
	return contents, nil
}

// Prepare pins memory for spans without copying anything: a Save that is given the Contents as Kept
// then runs at the speed of the link.
func (h *Host) Prepare(job Job, spans []Span) ([]Contents, error) {
	items := make([]Item, len(spans))
	for i, span := range spans {
		items[i].Span = span
	}
	contents, fresh, err := h.place(job, items)
	if err != nil || fresh == nil {
		return contents, err
	}
	if err := h.copyAll(job, fresh, make([][]copyJob, len(fresh.units)), nil); err != nil {
		h.garbage.add(fresh)
		return nil, err
	}
	return contents, nil
}

// place gives every item without kept Contents a place in one fresh slab; nil if none needs it.
func (h *Host) place(job Job, items []Item) (contents []Contents, fresh *slab, err error) {
	contents = make([]Contents, len(items))
	var placed []*hostContents
	var units []uint64
	var total uint64
	sharing := false // the last unit takes further small spans
	for i, item := range items {
		if contents[i] = item.Kept; contents[i] != nil {
			continue
		}
		if small := item.Size < pieceSize; !small || !sharing {
			units = append(units, 0)
			sharing = small
		}
		c := &hostContents{host: h, offset: total, size: item.Size, unit: len(units) - 1}
		contents[i], placed = c, append(placed, c)
		size := wholePages(item.Size)
		total += size
		for left := size; ; left -= maxUnit {
			if left <= maxUnit {
				units[len(units)-1] += left
				break
			}
			units[len(units)-1] = maxUnit
			units = append(units, 0)
		}
		sharing = sharing && units[len(units)-1] < pieceSize
	}
	if len(placed) == 0 {
		return contents, nil, nil
	}
	// What a resume just before has discarded goes first: giving back and taking at once cost more than one
	// after the other, and twice the memory, pages perhaps that the machine has never used.
	h.garbage.drain()
	if fresh, err = newSlab(h.driver, job, units...); err != nil {
		return nil, nil, err
	}
	for _, c := range placed {
		c.slab = fresh
	}
	fresh.references.Store(int64(len(placed)))
	return contents, fresh, nil
}

// copyAll makes the warm copies, and pins the units of a fresh slab, each followed by its copies.
// It returns the first error after everything has stopped.
func (h *Host) copyAll(job Job, fresh *slab, cold [][]copyJob, warm []copyJob) error {
	var touched chan int
	var touchers sync.WaitGroup
	var failed atomic.Bool
	var touching atomic.Pointer[error]
	workers := 1
	if len(cold) > 0 {
		workers = min(registrars, len(cold))
		touched = make(chan int, len(cold))
		var next atomic.Int64
		jobs := fresh.touchJobs()
		for range max(1, min(len(jobs), runtime.NumCPU()-registrars)) {
			touchers.Go(func() {
				if err := guard.Call(func() error {
					for i := int(next.Add(1) - 1); i < len(jobs) && !failed.Load(); i = int(next.Add(1) - 1) {
						if fresh.touch(jobs[i]) {
							touched <- jobs[i].unit
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
			errs <- onCopies(h.driver, job, func(c *copies) error {
				if w == 0 {
					if err := c.toHost(warm); err != nil {
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
					if err := fresh.register(i); err != nil {
						return err
					}
					if err := c.toHost(cold[i]); err != nil {
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
			if first == nil {
				first = err
			}
		}
	}
	touchers.Wait()
	if err := touching.Load(); err != nil && first == nil {
		first = *err
	}
	return first
}

// Load is Store.Load.
func (h *Host) Load(job Job) Loader {
	return newLoader(h.driver, job, (*hostContents).jobs, (*copies).toDevice)
}

// Drain waits until discarded memory has gone back to the operating system.
func (h *Host) Drain() { h.garbage.drain() }
