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
