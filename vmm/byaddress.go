package vmm

import (
	"cmp"
	"slices"
)

// byAddress has segments in the order of their addresses. It has them in runs, so that an insertion or a removal moves
// a few, however many there are.
type byAddress struct{ runs [][]*segment }

// longestRun is after how many segments a run is divided.
const longestRun = 256

// find returns the run, and the place there, of the first segment that begins at an address or behind it.
func (l *byAddress) find(address uintptr) (run, at int) {
	run, _ = slices.BinarySearchFunc(l.runs, address, func(r []*segment, address uintptr) int {
		return cmp.Compare(r[len(r)-1].address, address)
	})
	if run < len(l.runs) {
		at, _ = slices.BinarySearchFunc(l.runs[run], address, compareAddress)
	}
	return run, at
}

func compareAddress(s *segment, address uintptr) int { return cmp.Compare(s.address, address) }

// from returns the first segment that begins at an address or behind it, or nil.
func (l *byAddress) from(address uintptr) *segment {
	run, at := l.find(address)
	if run == len(l.runs) {
		return nil
	}
	return l.runs[run][at]
}

// before returns the last segment that begins before an address, or nil.
func (l *byAddress) before(address uintptr) *segment {
	run, at := l.find(address)
	if at == 0 {
		if run == 0 {
			return nil
		}
		run, at = run-1, len(l.runs[run-1])
	}
	return l.runs[run][at-1]
}

func (l *byAddress) insert(s *segment) {
	run, at := l.find(s.address)
	switch {
	case len(l.runs) == 0:
		l.runs = [][]*segment{{s}}
		return
	case run == len(l.runs): // behind all
		run--
		at = len(l.runs[run])
	}
	full := slices.Insert(l.runs[run], at, s)
	if l.runs[run] = full; len(full) > longestRun {
		half := len(full) / 2
		l.runs = slices.Insert(l.runs, run+1, slices.Clone(full[half:]))
		clear(full[half:])
		l.runs[run] = full[:half]
	}
}

// remove takes out a segment that is there.
func (l *byAddress) remove(s *segment) {
	run, at := l.find(s.address)
	if l.runs[run] = slices.Delete(l.runs[run], at, at+1); len(l.runs[run]) == 0 {
		l.runs = slices.Delete(l.runs, run, run+1)
	}
}
