package vmm

import "tms/vmm/cuda"

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
	if r.Repeated == nil || r.order.reused {
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
	if number, ok := r.Repeated.Offer(address, r.order.stream, m.event); ok {
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
