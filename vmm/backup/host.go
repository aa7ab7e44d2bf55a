package backup

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"tms/vmm/cuda"
)

// Host keeps contents in registered (pinned) huge-page host memory. Touching and pinning are what
// costs, so several threads each take a piece, pin it and issue its copy at once.
type Host struct {
	driver *cuda.Driver

	mu       sync.Mutex
	garbage  []*slab // whose last contents were discarded
	emptying bool
	emptied  sync.Cond
}

// pieceSize is how much one thread touches, registers and copies at a time.
const pieceSize = 128 << 20

// NewHost returns a store of host memory.
func NewHost(driver *cuda.Driver) *Host {
	h := &Host{driver: driver}
	h.emptied.L = &h.mu
	return h
}

// hostContents is a span's place in a slab.
type hostContents struct {
	host   *Host
	slab   *slab
	offset uint64
	size   uint64
}

func (c *hostContents) Bytes() uint64 { return c.size }
func (c *hostContents) Host() uintptr { return c.slab.base + uintptr(c.offset) }
func (c *hostContents) Discard() {
	if c.slab.references.Add(-1) == 0 {
		c.host.dispose(c.slab)
	}
}

// task is one worker's next piece of work: pin a piece of a slab if it is new, then copy.
type task struct {
	slab   *slab // nil: only copy
	piece  int
	copies []copyJob
}

// copyJob is one copy that the driver takes: its host side lies in one registered piece.
type copyJob struct {
	device, host uintptr
	size         uint64
}

// jobs cuts the copy between a span and its place in the slab where pieces meet: the driver
// refuses a copy that reaches from one registration into the next.
func (c *hostContents) jobs(span Span) []copyJob {
	var jobs []copyJob
	for done := uint64(0); done < span.Size; {
		offset := c.offset + done
		size := min(span.Size-done, pieceSize-offset%pieceSize)
		jobs = append(jobs, copyJob{
			device: span.Address + uintptr(done),
			host:   c.slab.base + uintptr(offset),
			size:   size,
		})
		done += size
	}
	return jobs
}

// Save is Store.Save.
func (h *Host) Save(context cuda.Context, spans []Span, kept []Contents) ([]Contents, error) {
	contents := make([]Contents, len(spans))
	var total uint64
	for i, span := range spans {
		if kept[i] == nil {
			total += span.Size
		}
	}
	var fresh *slab
	var tasks []task
	if total > 0 {
		var err error
		if fresh, err = newSlab(h.driver, context, total); err != nil {
			return nil, err
		}
		tasks = make([]task, len(fresh.registered))
		for i := range tasks {
			tasks[i] = task{slab: fresh, piece: i}
		}
	}
	var offset uint64
	for i, span := range spans {
		if kept[i] != nil {
			contents[i] = kept[i]
			for _, job := range kept[i].(*hostContents).jobs(span) {
				tasks = append(tasks, task{copies: []copyJob{job}})
			}
			continue
		}
		c := &hostContents{host: h, slab: fresh, offset: offset, size: span.Size}
		for _, job := range c.jobs(span) {
			t := &tasks[uint64(job.host-fresh.base)/pieceSize]
			t.copies = append(t.copies, job)
		}
		contents[i] = c
		fresh.references.Add(1)
		offset += span.Size
	}
	if err := h.run(context, tasks); err != nil {
		if fresh != nil {
			h.dispose(fresh)
		}
		return nil, err
	}
	return contents, nil
}

// run lets workers do the tasks and returns the first error, after all have stopped.
func (h *Host) run(context cuda.Context, tasks []task) error {
	workers := min(len(tasks), 16, runtime.NumCPU())
	var next atomic.Int64
	errs := make(chan error, workers)
	for range workers {
		go func() {
			errs <- h.work(context, func() *task {
				if i := next.Add(1) - 1; i < int64(len(tasks)) {
					return &tasks[i]
				}
				return nil
			})
		}()
	}
	var first error
	for range workers {
		if err := <-errs; err != nil {
			next.Store(int64(len(tasks)))
			if first == nil {
				first = err
			}
		}
	}
	return first
}

// work does tasks on a thread and a stream of its own until there are none.
func (h *Host) work(context cuda.Context, take func() *task) (err error) {
	return onStream(h.driver, context, func(stream cuda.Stream) error {
		for t := take(); t != nil; t = take() {
			if t.slab != nil {
				if err := t.slab.register(t.piece); err != nil {
					return err
				}
			}
			for _, c := range t.copies {
				if err := h.driver.MemcpyDtoHAsync(c.host, c.device, c.size, stream); err != nil {
					return fmt.Errorf("copying device memory to the host: %w", err)
				}
			}
		}
		return nil
	})
}

// onStream runs f with the context current to a locked thread and a fresh stream, and waits for
// the stream's work even when f fails: memory it copies to or from may go away after.
func onStream(driver *cuda.Driver, context cuda.Context, f func(cuda.Stream) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := driver.CtxPushCurrent(context); err != nil {
		return err
	}
	defer func() { _, _ = driver.CtxPopCurrent() }()
	stream, err := driver.StreamCreate()
	if err != nil {
		return err
	}
	err = f(stream)
	if waited := driver.StreamSynchronize(stream); err == nil {
		err = waited
	}
	if driver.StreamDestroy(stream) != nil {
		// Once more, so that a passing refusal leaks nothing; the work itself is done.
		_ = driver.StreamDestroy(stream)
	}
	return err
}

// Load is Store.Load.
func (h *Host) Load(context cuda.Context, spans []Span, contents []Contents) error {
	return onStream(h.driver, context, func(stream cuda.Stream) error {
		for i, span := range spans {
			for _, job := range contents[i].(*hostContents).jobs(span) {
				if err := h.driver.MemcpyHtoDAsync(job.device, job.host, job.size, stream); err != nil {
					return fmt.Errorf("copying host memory to the device: %w", err)
				}
			}
		}
		return nil
	})
}

// dispose gives a slab back in the background: unpinning 16 GiB takes a quarter of a second.
func (h *Host) dispose(s *slab) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.garbage = append(h.garbage, s)
	if !h.emptying {
		h.emptying = true
		go h.empty()
	}
}

// empty releases garbage; what the driver refuses to unpin is tried again at the next dispose.
func (h *Host) empty() {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() {
		h.emptying = false
		h.emptied.Broadcast()
	}()
	var refused []*slab
	for len(h.garbage) > 0 {
		s := h.garbage[0]
		h.garbage = h.garbage[1:]
		h.mu.Unlock()
		err := s.release()
		h.mu.Lock()
		if err != nil {
			refused = append(refused, s)
		}
	}
	h.garbage = refused
}

// Drain waits until discarded memory has gone back to the operating system.
func (h *Host) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.garbage) > 0 && !h.emptying {
		h.emptying = true
		go h.empty()
	}
	for h.emptying {
		h.emptied.Wait()
	}
}
