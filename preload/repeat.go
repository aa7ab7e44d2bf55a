package main

// #include "shim.h"
import "C"

import (
	"tms/vmm"
	"tms/vmm/cuda"
)

func _() {
	same := [1]struct{}{}
	_ = same[C.REPEAT_LIVE-vmm.TakenLive]
	_ = same[C.REPEAT_FREED-vmm.TakenFreed]
	_ = same[C.REPEAT_KEPT-vmm.TakenKept]
	_ = same[C.REPEAT_LATER-vmm.TakenLater]
}

// TakeOffer is vmm.Offers.TakeOffer.
func (p *Process) TakeOffer(offer int, ifFreed bool) vmm.Taken {
	return vmm.Taken(C.repeat_take(C.int(offer), C.bool(ifFreed)))
}

// repeated is a vmm.Repeated.
type repeated struct{ request *C.struct_repeat_request }

func (r repeated) Offer(address uintptr, streamID uint64, event cuda.Event) (int, bool) {
	offer := C.repeat_offer(r.request, C.uintptr_t(address), C.uint64_t(streamID), C.uintptr_t(event))
	return int(offer), offer >= 0
}
