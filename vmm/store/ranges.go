package store

import (
	"cmp"
	"slices"
)

// Ranges are parts of a span by offset, which do not overlap or touch.
type Ranges []Range

// Union returns ranges with all bytes of a list, in any order, which may overlap and be empty.
func Union(list []Range) Ranges {
	list = slices.Clone(list)
	slices.SortFunc(list, func(x, y Range) int { return cmp.Compare(x.Offset, y.Offset) })
	var joined Ranges
	for _, r := range list {
		last := len(joined) - 1
		switch {
		case r.Size == 0:
		case last >= 0 && r.Offset <= joined[last].end():
			joined[last].Size = max(joined[last].end(), r.end()) - joined[last].Offset
		default:
			joined = append(joined, r)
		}
	}
	return joined
}

// Without returns what is left without the bytes of other ranges.
func (r Ranges) Without(taken Ranges) Ranges {
	var left Ranges
	for _, whole := range r {
		at := whole.Offset
		first, _ := slices.BinarySearchFunc(taken, at+1, func(t Range, at uint64) int { return cmp.Compare(t.end(), at) })
		for _, t := range taken[first:] {
			if t.Offset >= whole.end() {
				break
			}
			if t.Offset > at {
				left = append(left, Range{at, t.Offset - at})
			}
			at = t.end()
		}
		if at < whole.end() {
			left = append(left, Range{at, whole.end() - at})
		}
	}
	return left
}

// Replace returns the ranges with others in the place of all bytes of a range, which has those others. It looks at no
// range that lies elsewhere, and may change the list that it was given.
func (r Ranges) Replace(whole Range, others Ranges) Ranges {
	first, _ := slices.BinarySearchFunc(r, whole.Offset, func(one Range, at uint64) int {
		return cmp.Compare(one.end(), at)
	})
	last := first
	for last < len(r) && r[last].Offset <= whole.end() {
		last++
	}
	joined := Union(append(r[first:last].Without(Ranges{whole}), others...))
	return slices.Replace(r, first, last, joined...)
}

// Bytes returns how many they are.
func (r Ranges) Bytes() (bytes uint64) {
	for _, one := range r {
		bytes += one.Size
	}
	return bytes
}

func (r Range) end() uint64 { return r.Offset + r.Size }
