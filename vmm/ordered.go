package vmm

import (
	"math"
	"slices"
	"time"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
	"tms/vmm/small"
)

// Memory that is freed in stream order (cudaFreeAsync) stays mapped for a while. The next allocation of the same stream
// may have it at once, because the stream's next work comes after all work that used the memory before. Others may have
// it once the stream has reached the free. So a step that frees and allocates the same sizes maps no memory. A pause, a
// shortage of memory, and cuMemPoolTrimTo take what is not used.

// idleMapped is how long unused memory stays mapped beyond the release threshold of its pool. To map memory takes a
// fiftieth of that time, so a program that allocates more rarely does not notice.
const idleMapped = 10 * time.Millisecond

// ordered counts a device's memory for stream order, in bytes: what cuMemPoolGetAttribute tells of a pool.
type ordered struct {
	used, usedHigh         uint64 // allocations
	reserved, reservedHigh uint64 // their segments, and what was freed and stays mapped
	keep                   uint64 // the release threshold
}

func (o *ordered) use(bytes uint64) {
	o.used += bytes
	o.usedHigh = max(o.usedHigh, o.used)
}

// serveOrdered notes an allocation in stream order. The caller holds e.mu.
func (e *Engine) serveOrdered(d *device, r *Request, address uintptr) {
	d.ordered.use(r.Size)
	d.ordered.keep = r.Keep
	e.offer(r, address)
	e.startReaping(d)
}

// Bytes returns how many bytes of a device serve stream order: reserved, the most reserved, used, the most used.
func (f Ordered) Bytes(ordinal int) (bytes [4]uint64) {
	e := f.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.devices[ordinal]; d != nil {
		o := d.ordered
		bytes = [4]uint64{o.reserved, o.reservedHigh, o.used, o.usedHigh}
	}
	return bytes
}

// ResetHigh makes the most used, or else the most reserved, what there is now.
func (f Ordered) ResetHigh(ordinal int, used bool) {
	e := f.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.devices[ordinal]; d != nil && used {
		d.ordered.usedHigh = d.ordered.used
	} else if d != nil {
		d.ordered.reservedHigh = d.ordered.reserved
	}
}

// FreeAfter ends an allocation once the stream has done the work that it holds now, as cudaFreeAsync does. The caller
// waits for none of that work, only for a transition that is working on the segment; a thread of the engine polls the
// stream. The stream must not be in a capture. Errors: ErrInvalidAddress, *cuda.Error; the segment is then still there.
// (cuStreamGetId, cuEventRecord, cuStreamGetCtx, cuEventQuery, cuMemUnmap, cuMemRelease)
func (e *Engine) FreeAfter(address uintptr, stream cuda.Stream) (err error) {
	defer e.audit(&err)
	o := cuda.OrderOf(e.driver, stream)
	l, m := e.lineAt(address, o)
	if l != nil {
		// Before the claim, so that an error leaves nothing claimed.
		if m.event, err = l.device.record(stream, m.event); err != nil {
			return err
		}
	}
	e.mu.lockAlone()
	defer e.mu.Unlock()
	a, err := e.claim(address)
	if l != nil && err == nil && a.segment.mapped() {
		e.putOffOnStream(a, l, m)
		return nil
	}
	if l != nil {
		l.unmark(m)
	}
	if err != nil {
		return err
	}
	return e.free(a)
}

// lineAt returns the line for a free of the live allocation at an address, and a mark, which has an event of the line
// to use again, or 0. It returns nil if the memory cannot be in use.
func (e *Engine) lineAt(address uintptr, o cuda.Order) (*line, *mark) {
	e.mu.lockAlone()
	defer e.mu.Unlock()
	e.takeOffer(address, false)
	s := e.around(address).segment
	if s == nil || !s.mapped() {
		return nil, nil
	}
	l := s.device.lineOf(s.tag, o)
	if len(l.spare) == 0 {
		return l, &mark{users: 1}
	}
	m := l.spare[len(l.spare)-1]
	l.spare = l.spare[:len(l.spare)-1]
	m.users = 1
	return l, m
}

// record is mark with an event of the same stream, if there is one. (cuEventRecord)
func (d *device) record(stream cuda.Stream, event cuda.Event) (cuda.Event, error) {
	if event != 0 {
		if d.driver.EventRecord(event, stream) == nil {
			return event, nil
		}
		d.driver.DropEvent(event)
	}
	return d.mark(stream)
}

// Trim gives back memory of a device that was freed in stream order and is not in use, until keep bytes are left
// for stream order. (cuMemPoolTrimTo)
func (f Ordered) Trim(ordinal int, keep uint64) {
	e := f.engine
	e.settle(func(d *device, _ *pendingFree) (uint64, bool) { return keep, d.ordinal == ordinal })
}

// Settle gives back what is idle beyond the release thresholds, so that a question for free memory finds it.
func (f Ordered) Settle() {
	e := f.engine
	e.settle(func(d *device, _ *pendingFree) (uint64, bool) { return d.ordered.keep, true })
}

func (e *Engine) settle(keeps func(*device, *pendingFree) (keep uint64, may bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pending.lines) == 0 && e.pending.at[idle].length == 0 {
		return
	}
	e.pollAll()
	e.giveBackIdle(keeps)
	for e.awaitProgress(func() bool { return e.pending.at[due].length > 0 }) {
	}
}

// takeFreed returns freed memory of a tag for an allocation in stream order, or nil if there is none. Where memory is
// short, the memory may be a part of a larger piece. It may also still wait for another stream, for which the
// allocation's own stream then waits. The caller holds e.mu, which is released for driver calls. (cuEventQuery,
// cuStreamWaitEvent)
func (e *Engine) takeFreed(d *device, r *Request, granules uint32, short bool) *segment {
	s := e.takeReached(d, r, granules, short)
	if s == nil && !d.tag(r.Tag).isEmpty() && len(e.pending.lines) > 0 {
		// To ask the streams costs less than new memory, but releases the lock, and others must not find a tag of
		// nothing.
		e.pollAll()
		s = e.takeReached(d, r, granules, short)
	}
	return s
}

// takeReached is takeFreed as far as is known of the streams.
func (e *Engine) takeReached(d *device, r *Request, granules uint32, short bool) *segment {
	t := d.tag(r.Tag)
	wanted := shape{bytes: uint64(granules) * d.granularity}
	most := wanted.bytes + wanted.bytes/8
	if short {
		most = math.MaxUint64
	}
	if l := t.line(r.order); l != nil && !r.order.Reused {
		if f := l.find(wanted, most); f != nil {
			return e.takeBack(f, granules, short)
		}
	}
	if f := t.idle.find(wanted, most); f != nil {
		return e.takeBack(f, granules, short)
	}
	if !short {
		return nil
	}
	for _, l := range t.lines {
		f := l.find(wanted, most)
		if f == nil {
			continue
		}
		m := f.mark
		m.users++
		err := e.unlocked(func() error { return e.driver.StreamWaitEvent(r.Stream, m.event) })
		l.unmark(m)
		if err == nil && usable([]*pendingFree{f}) == f && (f.stage == onStream || f.stage == idle) {
			return e.takeBack(f, granules, short)
		}
		return nil // the map may have changed
	}
	return nil
}

// takeBack takes the memory of a free for another allocation, as takeSlack does. With part, memory beyond the granules
// stays free. The caller holds e.mu.
func (e *Engine) takeBack(f *pendingFree, granules uint32, part bool) *segment {
	s, stage, why, behind := f.segment, f.stage, f.why, f.freedInOrder
	if m := behind.mark; m != nil {
		m.users++
		defer behind.line.unmark(m)
	}
	e.advance(f, taken, "")
	e.forget(s)
	s.owner = nobody
	if !part || s.span.Granules() <= granules {
		return s
	}
	x := s.extent
	rest := &segment{device: s.device, extent: x, span: s.span.Split(granules), policy: s.policy, owner: aFree}
	rest.address, rest.size = rest.span.Address(), rest.length()
	at, _ := slices.BinarySearchFunc(x.segments, s.address, compareAddress)
	x.segments = slices.Insert(x.segments, at+1, rest)
	x.live++
	rest.span.Enter(rest)
	s.tag.add(rest)
	if behind.mark != nil {
		behind.mark.users++
	}
	behind.shape = shape{bytes: rest.size}
	e.putOff(pendingFree{allocation: allocation{segment: rest}, stage: stage, why: why, freedInOrder: behind})
	return s
}

// takeSmall returns where a small allocation was freed that a new one in stream order may replace. The caller holds
// e.mu.
func (t *tag) takeSmall(e *Engine, r *Request, p policy) (uintptr, bool) {
	wanted := shape{small.Round(r.Size), p}
	var f *pendingFree
	if l := t.line(r.order); l != nil && !r.order.Reused {
		f = l.find(wanted, wanted.bytes)
	}
	if f == nil {
		f = t.idle.find(wanted, wanted.bytes)
	}
	if f == nil {
		return 0, false
	}
	s, offset := f.segment, f.offset
	e.advance(f, taken, "")
	s.slab.Reuse(offset, r.Size)
	return s.address + offset, true
}

// find returns freed memory that can be used now: of the wanted policy, and of a size from the wanted one to most
// bytes. The latest is the likeliest to be in the device's cache.
func (s *shelf) find(wanted shape, most uint64) *pendingFree {
	at, _ := slices.BinarySearchFunc(s.bins, wanted.bytes, compareBytes)
	for ; at < len(s.bins) && s.bins[at].bytes <= most; at++ {
		if s.bins[at].policy != wanted.policy {
			continue
		}
		if f := usable(s.bins[at].frees); f != nil {
			return f
		}
	}
	return nil
}

// usableTries is at how many frees usable looks.
const usableTries = 4

// usable returns the last of a few frees whose memory no other thread works on.
func usable(list []*pendingFree) *pendingFree {
	for i := len(list) - 1; i >= 0 && i >= len(list)-usableTries; i-- {
		s := list[i].segment
		x := s.extent
		if x != nil && x.owner == nobody && x.Step == mapping.Accessible && s.state == active &&
			(s.owner == aFree) != list[i].small {
			return list[i]
		}
	}
	return nil
}

// A program that runs in steps frees memory in the order of a stream and allocates as much there at once. Its own
// threads can do both without the engine: an allocation is offered to them with the event that a free records. What
// they do with an offer the engine finds out when it takes the offer back. Until then the allocation is live to the
// engine, though it may be free. So to lock mu takes all offers back, and the records are true. Allocations and frees
// in stream order alone leave the offers where they are (lockAlone).

// Taken is what has become of an offer.
type Taken int

// What Offers.TakeOffer finds.
const (
	TakenLive  Taken = iota // the allocation is live, and the offer over
	TakenFreed              // the allocation is free once its stream has reached the event, and the offer is over
	TakenKept               // the allocation is live, and still offered
	TakenLater              // a thread is recording the event; it then frees by FreeAfter. Take again, for the event
)

// Offers is where threads of the program find offers.
type Offers interface {
	// TakeOffer takes an offer back; with ifFreed, only if the allocation is free. It never waits.
	TakeOffer(offer int, ifFreed bool) Taken
}

// Repeated is a request that the program is likely to make again.
type Repeated interface {
	// Offer offers its allocation to a free in the order of its stream, and to the next such request there. The event
	// belongs to that stream. Offer returns the number by which TakeOffer knows the offer, and reports whether there
	// was room for it. It is called with the engine's lock held.
	Offer(address uintptr, streamID uint64, event cuda.Event) (offer int, ok bool)
}

// offered is an offer, as the engine knows it.
type offered struct {
	number int
	line   *line
	mark   *mark
}

// lockFor locks mu for an allocation, which the offers of live memory do not concern. The caller unlocks mu.
func (e *Engine) lockFor(r *Request) {
	e.mu.lockAlone()
	if r.Ordered {
		e.takeOffers(true)
	}
}

// offer offers an allocation that was just made. The caller holds e.mu.
func (e *Engine) offer(r *Request, address uintptr) {
	if r.Repeated == nil || r.order.Reused {
		return
	}
	a := e.around(address)
	l := a.segment.tag.line(r.order)
	if l == nil || len(l.spare) == 0 || a.segment.owner != nobody || a.segment.state != active ||
		a.segment.contents != nil || shapeOf(a).bytes == 0 {
		return
	}
	if _, being := e.offers[address]; being {
		return // the one before is to be taken later
	}
	m := l.spare[len(l.spare)-1]
	if number, ok := r.Repeated.Offer(address, r.order.ID, m.event); ok {
		l.spare = l.spare[:len(l.spare)-1]
		m.users = 1
		e.offers[address] = offered{number, l, m}
	}
}

// takeOffers takes the offers back; with ifFreed, only those of allocations that the program has freed. The caller
// holds e.mu.
func (e *Engine) takeOffers(ifFreed bool) {
	for address := range e.offers {
		e.takeOffer(address, ifFreed)
	}
}

// takeOffer takes the offer of an allocation back, if there is one. The caller holds e.mu.
func (e *Engine) takeOffer(address uintptr, ifFreed bool) {
	o, found := e.offers[address]
	if !found {
		return
	}
	taken := e.process.TakeOffer(o.number, ifFreed)
	if taken == TakenKept || taken == TakenLater {
		return
	}
	delete(e.offers, address)
	if taken == TakenFreed {
		if a, err := e.claim(address); err == nil {
			e.putOffOnStream(a, o.line, o.mark)
			return
		}
	}
	o.line.unmark(o.mark)
}
