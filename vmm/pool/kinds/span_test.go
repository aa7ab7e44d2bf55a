package kinds_test

import (
	"cmp"
	"slices"
)

// span is a range of addresses. Lists of spans are sorted and do not overlap.
type span struct{ start, size uint64 }

// find returns the place of the span that begins at start, or where it belongs.
func find(spans []span, start uint64) (int, bool) {
	return slices.BinarySearchFunc(spans, start, func(s span, start uint64) int { return cmp.Compare(s.start, start) })
}

func insert(spans []span, s span) []span {
	i, _ := find(spans, s.start)
	return slices.Insert(spans, i, s)
}

func remove(spans []span, i int) []span { return slices.Delete(spans, i, i+1) }

// overlaps reports whether any byte of s is in one of the spans.
func overlaps(spans []span, s span) bool {
	i, _ := find(spans, s.start)
	return i > 0 && spans[i-1].start+spans[i-1].size > s.start ||
		i < len(spans) && spans[i].start < s.start+s.size
}

// within reports whether one of the spans, or with across several that touch, holds all of s.
func within(spans []span, s span, across bool) bool {
	i, found := find(spans, s.start)
	if !found {
		i--
	}
	if i < 0 {
		return false
	}
	end := spans[i].start + spans[i].size
	for across && i+1 < len(spans) && spans[i+1].start == end {
		i++
		end += spans[i].size
	}
	return s.start <= end && s.size <= end-s.start
}
