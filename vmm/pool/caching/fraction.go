package caching

import (
	"fmt"

	"tms/vmm/pool"
)

// SetMemoryFraction limits the pool to a part, from 0 to 1, of the device's memory, and switches garbage collection on
// if that has a threshold. (set_per_process_memory_fraction) Errors: pool.ErrOption for other numbers or if the
// device's memory is unknown, or the source's.
func (p *Pool) SetMemoryFraction(fraction float64) error {
	if !(fraction >= 0 && fraction <= 1) {
		return fmt.Errorf("%w: a memory fraction of %v: give 0 to 1", pool.ErrOption, fraction)
	}
	p.Lock()
	defer p.Unlock()
	_, total, err := p.memory()
	if err != nil {
		return fmt.Errorf("reading the device's memory: %w", err)
	}
	if total == 0 {
		return fmt.Errorf("%w: a memory fraction needs total=, since the source does not know it", pool.ErrOption)
	}
	p.allowed = uint64(fraction * float64(total))
	p.limited = true
	return nil
}

// memory returns the device's free and total memory; total is 0 if it is unknown. If the source does not know, all that
// the pool does not hold counts as free.
func (p *Pool) memory() (free, total uint64, err error) {
	if m, ok := p.source.(pool.Memory); ok {
		return m.Memory()
	}
	return p.total - min(p.total, p.reserved()), p.total, nil
}
