package caching

import (
	"fmt"
	"math"

	"tms/vmm/pool"
)

// settings are a pool's options as read.
type settings struct {
	maxSplit  uint64
	divisions divisions
	threshold float64 // of garbage collection; 0: none
	total     uint64
	device    int
}

// read takes the options; ordinal is the source's device; a negative fraction means none is set.
func (s *settings) read(options *pool.Options, ordinal int) (fraction float64, err error) {
	s.maxSplit = options.Bytes("max_split_size", math.MaxUint64)
	s.threshold = options.Fraction("garbage_collection_threshold", 0)
	s.total = options.Bytes("total", 0)
	s.device = options.Int("device", ordinal)
	fraction = options.Fraction("memory_fraction", -1)
	rounding := options.Text("roundup_power2_divisions", "")
	if err := options.Err(); err != nil {
		return 0, err
	}
	if s.maxSplit != math.MaxUint64 && (s.maxSplit <= largeSegment || s.maxSplit%(1<<20) != 0) {
		return 0, fmt.Errorf("%w: max_split_size=%d: give whole MiB, more than 20", pool.ErrOption, s.maxSplit)
	}
	if s.threshold == 1 {
		return 0, fmt.Errorf("%w: garbage_collection_threshold=1: give less than 1", pool.ErrOption)
	}
	s.divisions, err = parseDivisions(rounding)
	return fraction, err
}

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
