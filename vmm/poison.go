package vmm

import "tms/vmm/store"

// poisonWord is NaN in every floating-point format: of 16, 32 and 64 bits, and both of 8 bits.
const poisonWord = 0x7fff7fff

// poison fills the memory of resumed segments whose contents were not kept, so that a silent use of lost
// contents shows. (cuMemsetD32Async)
func (e *Engine) poison(b *batch) error {
	return e.fill(b, poisonWord, func(s *segment) store.Ranges { return s.back().lost })
}
