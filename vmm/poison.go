package vmm

import "tms/vmm/cuda"

// poisonWord is NaN in every floating-point format: of 16, 32 and 64 bits, and both of 8 bits.
const poisonWord = 0x7fff7fff

// poison fills the memory of resumed segments whose contents were not kept, so that a silent use of lost
// contents shows. (cuMemsetD32Async)
func (e *Engine) poison(b *batch) error {
	return e.driver.OnStream(b.device.context, func(stream cuda.Stream) error {
		for _, s := range b.segments {
			if s.contents != nil && s.current {
				continue
			}
			if err := e.driver.MemsetD32Async(b.span(s).Address, poisonWord, s.length()/4, stream); err != nil {
				return err
			}
		}
		return nil
	})
}
