package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/cuda"
)

// bids are a vmm.Offers and the requests for them, and a program whose threads do what a test says.
type bids struct {
	offers []*bid
}

type bid struct {
	address uintptr
	event   cuda.Event
	state   vmm.Taken // what Take finds, without regard to ifFreed
	over    bool
}

func (b *bids) Offer(address uintptr, _ uint64, event cuda.Event) (int, bool) {
	b.offers = append(b.offers, &bid{address: address, event: event, state: vmm.TakenLive})
	return len(b.offers) - 1, true
}

func (b *bids) TakeOffer(offer int, ifFreed bool) vmm.Taken {
	o := b.offers[offer]
	if o.state == vmm.TakenLive && ifFreed {
		return vmm.TakenKept
	}
	o.over = o.state != vmm.TakenLater
	return o.state
}

// offered is a program on a stream, and its last allocation, which is offered.
func offered(t *testing.T) (o *inOrder, stream cuda.Stream, b *bids, last *bid, malloc func() uintptr) {
	o = newInOrder(t)
	o.engine.CheckInvariants(false) // which takes all offers back
	b = &bids{}
	vmm.HostOf(o.engine).SetOffers(b)
	o.malloc(1, 0) // makes a context current
	stream = o.stream()
	malloc = func() uintptr {
		r := o.request(8*mib, stream)
		r.Repeated, r.Keep = b, 1<<40
		address, err := o.engine.Malloc(r)
		require.NoError(t, err)
		return address
	}
	a := malloc()
	require.Empty(t, b.offers, "there is no event yet")
	o.free(a, stream)
	require.Equal(t, a, malloc())
	require.Len(t, b.offers, 1)
	require.Equal(t, a, b.offers[0].address)
	return o, stream, b, b.offers[0], malloc
}

// What the program has freed is free to all but an allocation, which leaves alone what is live.
func TestOffersAreTakenBack(t *testing.T) {
	for name, ask := range map[string]func(o *inOrder, a uintptr){
		"range": func(o *inOrder, a uintptr) {
			base, _ := o.engine.Records().RangeOf(a)
			require.Zero(o.t, base)
		},
		"bytes": func(o *inOrder, _ uintptr) { require.EqualValues(o.t, 1, o.engine.Ordered().Bytes(0)[2]) },
		"free":  func(o *inOrder, a uintptr) { require.ErrorIs(o.t, o.engine.Free(a, false), vmm.ErrInvalidAddress) },
		"again": func(o *inOrder, a uintptr) { require.ErrorIs(o.t, o.engine.FreeAfter(a, 0), vmm.ErrInvalidAddress) },
		"pause": func(o *inOrder, _ uintptr) {
			require.NoError(o.t, pause(o.engine, vmm.Options{Tags: []string{"t"}}))
			require.Zero(o.t, o.sim.Stat("handles"))
		},
		"reset": func(o *inOrder, _ uintptr) {
			o.engine.Reset(0)
			require.Zero(o.t, o.sim.Stat("handles"))
		},
		"stats": func(o *inOrder, _ uintptr) {
			held, err := o.engine.Records().KnownStats()
			require.NoError(o.t, err)
			require.EqualValues(o.t, 1, held.Devices[0].LiveBytes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, _, _, last, _ := offered(t)
			last.state = vmm.TakenFreed
			ask(o, last.address)
			require.True(t, last.over)
		})
	}
}

// An allocation takes what is free, in stream order, and leaves what is live offered.
func TestAnAllocationTakesFreedOffersOnly(t *testing.T) {
	o, stream, b, last, malloc := offered(t)
	another := malloc()
	require.NotEqual(t, last.address, another)
	require.True(t, last.over, "new memory was made for it")
	for _, a := range []uintptr{last.address, another} {
		o.free(a, stream)
	}
	malloc()
	malloc()
	require.Len(t, b.offers, 4)
	live, freed := b.offers[2], b.offers[3]
	freed.state = vmm.TakenFreed
	require.Equal(t, freed.address, malloc())
	require.True(t, freed.over)
	require.False(t, live.over)
	require.EqualValues(t, 16*mib+1, o.engine.Ordered().Bytes(0)[3], "the most there ever was")
	o.free(live.address, stream)
	require.True(t, live.over)
	o.free(freed.address, stream)
}

// A thread that is recording the event when the engine wants to know frees by the engine. The event is used again, and
// never by two frees at once.
func TestAnOfferThatAThreadIsTaking(t *testing.T) {
	o, stream, b, last, malloc := offered(t)
	last.state = vmm.TakenLater
	base, _ := o.engine.Records().RangeOf(last.address)
	require.Equal(t, last.address, base, "it is live")
	o.free(last.address, stream) // the thread, before its offer is seen to be over
	require.Equal(t, last.address, malloc())
	require.Len(t, b.offers, 1, "the address is still in an offer")
	last.state = vmm.TakenLive
	o.free(last.address, stream)
	require.True(t, last.over)
	require.Equal(t, last.address, malloc())
	require.Len(t, b.offers, 2)
	require.NoError(t, o.engine.Free(last.address, false))
}
