package caching

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"tms/vmm/pool"
)

const (
	minBlock        = 512      // all sizes are multiples of it
	smallSize       = 1 << 20  // the largest size for the small pool
	smallSegment    = 2 << 20  // for sizes of the small pool
	largeSegment    = 20 << 20 // for sizes below ownSegment
	ownSegment      = 10 << 20 // from here on a size gets a segment of its own,
	segmentMultiple = 2 << 20  // in multiples of this
)

// divisions holds, for each power-of-two interval of sizes from 1 MiB to 64 GiB, the logarithm of its number of steps;
// 0 is none. Smaller and larger sizes belong to the first and last interval.
type divisions [16]uint8

func (d *divisions) round(size uint64) uint64 {
	floor := bits.Len64(size) - 1
	steps := d[min(max(floor-20, 0), len(d)-1)]
	step := uint64(minBlock)
	if steps > 0 {
		step = max(step, 1<<floor>>steps)
	}
	return (size + step - 1) &^ (step - 1)
}

func segmentSize(size uint64) uint64 {
	switch {
	case size <= smallSize:
		return smallSegment
	case size < ownSegment:
		return largeSegment
	}
	return (size + segmentMultiple - 1) &^ (segmentMultiple - 1)
}

// parseDivisions reads roundup_power2_divisions: 8, or [256:1,512:2,1024:4,>:8]; semicolons work as well.
func parseDivisions(text string) (d divisions, err error) {
	fail := func(what string) (divisions, error) {
		return divisions{}, fmt.Errorf("%w: roundup_power2_divisions=%s: %q is not a power of two",
			pool.ErrOption, text, what)
	}
	if text == "" {
		return d, nil
	}
	list, isList := strings.CutPrefix(text, "[")
	list, closed := strings.CutSuffix(list, "]")
	if isList != closed {
		return fail(text)
	}
	if !isList {
		list = ">:" + list
	}
	next := 0 // the interval after the last named one
	for i, entry := range strings.Split(strings.ReplaceAll(list, ";", ","), ",") {
		key, value, _ := strings.Cut(entry, ":")
		steps, ok := logarithm(value)
		if !ok {
			return fail(value)
		}
		first, last := next, len(d)
		if strings.TrimSpace(key) != ">" {
			interval, ok := logarithm(key)
			if !ok {
				return fail(key)
			}
			first = min(interval, len(d)-1)
			next, last = first+1, first+1
			if i == 0 {
				first = 0 // the first entry also covers smaller sizes
			}
		}
		for at := first; at < last; at++ {
			d[at] = uint8(steps)
		}
	}
	return d, nil
}

func logarithm(text string) (int, bool) {
	number, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return bits.TrailingZeros64(number), err == nil && bits.OnesCount64(number) == 1
}
