package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/stats"
)

// Order says in which order a resume brings memory back: what no range names first, and then the ranges step by step.
// docs/design/order.md has the reasons.
type Order struct {
	Ranges []OrderedRange
	// Back is called, without the lock of the engine's records, when all memory of a step and of the steps before is
	// back, with the bytes of all that. From its first call on the gate keeps the program from the rest: Host.Gated has
	// said so.
	Back func(step int, mapped uint64)
	// Ended is called when all is back, with nil, or when the first step is back and the rest does not come. No other
	// pause or resume has a turn before Ended returns.
	Ended func(error)
}

// OrderedRange is memory that comes back at a step; the first is 0. What several ranges name comes back at the earliest
// of their steps. A segment of which no range names some bytes that the program may use comes back first.
type OrderedRange struct {
	Address uintptr
	Size    uint64
	Step    int
}

// timesMost is how many times memory comes back, at most, after the first: while the driver maps it, nothing is copied.
// Tests change it.
var timesMost uint64 = 64

// errNoOrder says why a resume cannot have an order.
var errNoOrder = errors.New("memory of other processes comes back with it")

// resumeInOrder is Resume for a caller that has closed the gate, and lets a part of the program go on as Order.Back is
// called. It has its turn until all is back, so a pause or another resume comes before it or behind it. Each step is a
// transaction. The first one also takes the memory of all later steps, because the program can allocate after it. An
// error before Order.Back is first called changes nothing. After a later error, earlier steps are back. The rest is
// paused with its contents as by a gated pause, so the gate stays closed until a resume.
//
// After the first step, memory has its contents before it is mapped at its addresses. Host memory of contents that are
// not kept is given back in the background, once all is back. It waits neither for memory nor for other processes: where
// it would have to, it fails before it changes anything. Errors: as Resume.
// (cuMemCreate, cuMemAddressReserve, cuMemMap, cuMemSetAccess, cuMemUnmap)
func (e *Engine) resumeInOrder(options Options) (mapped uint64, err error) {
	if err := e.barred(&options); err != nil {
		return 0, err
	}
	o := e.begun("resume", options)
	defer e.over(o, &mapped, &err)
	if o.Capturing {
		return 0, fmt.Errorf("resume: %w", ErrCapturing)
	}
	o.postpones = true
	defer func() {
		for _, contents := range o.postponed {
			contents.Discard()
		}
	}()
	resumes := func(s *segment) bool { return s.is(paused) && s.changedAfter(o.Since) }
	asked := time.Now()
	e.FreeDeferred()
	e.takeTurn()
	defer e.transition.Unlock()
	o.spent.waited += time.Since(asked)

	chosen := e.choose(o.Tags, resumes)
	if slices.ContainsFunc(chosen, func(s *segment) bool { return s.imported != nil }) {
		return 0, fmt.Errorf("resume: %w", errNoOrder)
	}
	for d, need := range e.needs(chosen) {
		if err := e.shortageOn(d, need.held, need.bytes, nil); err != nil {
			return 0, fmt.Errorf("resume: %w", err)
		}
	}
	var all []*batch
	var ending sync.WaitGroup
	defer ending.Wait()
	defer func() { e.count(all, asked, err, func(t *totals) *stats.Total { return &t.resumes }) }()
	ends := []int{0}
	step := func(n int) error {
		o.step = n
		batches := e.begin(o.Tags, func(s *segment) bool {
			return resumes(s) && s.imported == nil && (n == 0 || o.at[s] == n)
		})
		defer ending.Go(func() { // while the next step is copied
			for _, b := range batches {
				b.endAsides()
			}
		})
		return e.transactOn(batches, "resume", o, func(batches []*batch) error {
			if n == 0 {
				o.at, ends = e.steps(batches, options.Order.Ranges)
			}
			bytes, err := e.retake(batches, o, false)
			if err == nil {
				mapped += bytes
				all = append(all, batches...)
			}
			return err
		}, e.resumedSince(asked, o))
	}

	if err := step(0); err != nil {
		return 0, fmt.Errorf("resume: %w", err)
	}
	err = guard.Call(func() error { // after a panic, too, the program must not wait for what does not come
		e.dropWoken(o)
		e.hold(o.at)
		for n, end := range ends {
			if n > 0 {
				if err := step(n); err != nil {
					return err
				}
			}
			options.Order.Back(end, mapped)
		}
		return nil
	})
	if err != nil {
		err = cmp.Or(guard.Call(func() error { e.giveUp(o); return nil }), err)
	}
	if options.Order.Ended(err); err != nil {
		return mapped, fmt.Errorf("resume: %w", err)
	}
	e.noted.Delete(o.what())
	return mapped, nil
}

// setLaterApart takes out of a batch, until rejoin, what comes back at later steps of an order.
func (b *batch) setLaterApart(o *operation) (rejoin func()) {
	if o.Order == nil {
		return func() {}
	}
	segments, extents := b.segments, b.extents
	now := func(s *segment) bool { return o.at[s] <= o.step }
	b.segments = filter(segments, now)
	b.extents = filter(extents, func(x *extent) bool { return now(x.segments[0]) })
	b.later = filter(extents, func(x *extent) bool { return !now(x.segments[0]) })
	return func() {
		for _, x := range b.later {
			b.moved -= x.Size
		}
		b.segments, b.extents, b.later = segments, extents, nil
	}
}

// giveUp gives the memory back that was taken for steps which do not come. What the driver refuses to release goes with
// the next resume, pause or free, as after other errors.
func (e *Engine) giveUp(o *operation) {
	taken := e.begin(o.Tags, func(s *segment) bool { return s.is(paused) && s.extent != nil && o.at[s] > 0 })
	_ = e.transactOn(taken, "resume", o, func(batches []*batch) error {
		for _, b := range batches {
			for _, x := range b.extents {
				_ = x.Undo(false)
			}
		}
		return nil
	}, func(*tag) {})
}

// steps joins small steps to those behind them, but for the first. It returns at which of the joined steps each segment
// comes back, where that is not the first, and at which step of the order each of them ends. What has memory, after an
// error, comes back at the first: it may be mapped at its addresses.
func (e *Engine) steps(batches []*batch, ranges []OrderedRange) (at map[*segment]int, ends []int) {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(x, y OrderedRange) int { return cmp.Compare(x.Address, y.Address) })
	var segments []*segment
	for _, b := range batches {
		segments = append(segments, b.segments...)
	}
	slices.SortFunc(segments, func(x, y *segment) int { return cmp.Compare(x.address, y.address) })
	given, last := map[*segment]int{nil: 0}, 0  // the first step comes always
	bytes, total := map[int]uint64{}, uint64(0) // of each step after the first, and of all
	var open []OrderedRange                     // that begin before the end of a segment, and may reach into it
	var p pace
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range segments {
		end := s.address + uintptr(s.length())
		for len(ranges) > 0 && ranges[0].Address < end {
			open, ranges = append(open, ranges[0]), ranges[1:]
		}
		open = slices.DeleteFunc(open, func(r OrderedRange) bool { return r.Address+uintptr(r.Size) <= s.address })
		if s.extent == nil && s.isNamedBy(open) {
			given[s] = slices.MinFunc(open, func(x, y OrderedRange) int { return cmp.Compare(x.Step, y.Step) }).Step
			if last = max(last, given[s]); given[s] > 0 {
				bytes[given[s]] += s.length()
				total += s.length()
			}
		}
		p.yield(e, 1+len(open))
	}
	joined, sum := map[int]int{}, uint64(0)
	for _, step := range slices.Compact(slices.Sorted(maps.Values(given))) {
		joined[step] = len(ends)
		if sum += bytes[step]; step == 0 || step == last || sum >= total/timesMost {
			ends, sum = append(ends, step), 0
		}
	}
	at = map[*segment]int{}
	for s, step := range given {
		if joined[step] > 0 {
			at[s] = joined[step]
		}
	}
	return at, ends
}

// isNamedBy reports whether ranges, sorted by address, together name all bytes of a segment that the program may use. In
// a slab that is each byte, because small allocations may lie anywhere in it.
func (s *segment) isNamedBy(ranges []OrderedRange) bool {
	named, end := s.address, s.address+uintptr(s.size)
	if s.slab != nil {
		end = s.address + uintptr(s.length())
	}
	for _, r := range ranges {
		if r.Address <= named {
			named = max(named, r.Address+uintptr(r.Size))
		}
	}
	return named >= end
}

// hold has the gate keep the program's threads from segments, as from what a gated pause has paused. They stay exposed:
// a thread that is let in during the resume may name their addresses.
func (e *Engine) hold(segments map[*segment]int) {
	var p pace
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range segments {
		if p.yield(e, 1); s.listed && s.is(paused) && !s.gated {
			s.gated = true
			s.device.gated++
			s.tag.gated++
		}
	}
	e.tellPaused()
}

// discard gives up what a resume does not keep of a segment: at once, or when all is back, because the driver keeps the
// program's calls waiting while it gives host memory back.
func (o *operation) discard(s *segment) {
	if o.postpones {
		o.postponed = append(o.postponed, s.contents)
		return
	}
	o.discarded.Add(s.contents, s.prompt)
	s.contents.Discard()
}
