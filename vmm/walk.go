package vmm

import (
	"maps"
	"slices"
)

// stride is how many segments are walked through before others get e.mu: a program has hundreds of thousands, and its
// allocations wait for e.mu.
var stride = 256

// pace counts what was walked through since others could have e.mu.
type pace int

// yield notes that segments were walked through, and reports whether it has let others have e.mu. The caller holds
// e.mu.
func (p *pace) yield(e *Engine, segments int) bool {
	if *p += pace(segments); int(*p) < stride {
		return false
	}
	*p = 0
	e.mu.Unlock()
	e.auditQuietly()
	e.mu.Lock()
	return true
}

// visit calls f with the segments that have the tags (nil: every tag); f returns how many segments it has looked at.
// The caller holds e.mu, which is released at times. So f may miss what is made or goes after visit has begun, and may
// get a segment twice.
func (e *Engine) visit(tags []string, f func(*device, *segment) int) {
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		if tags == nil {
			for _, t := range d.tags { // a map may change while it is gone through
				p.yield(e, 1)
				t.visit(e, &p, func(s *segment) int { return f(d, s) })
			}
		}
		for i, name := range tags {
			if t := d.tags[name]; t != nil && !slices.Contains(tags[:i], name) {
				t.visit(e, &p, func(s *segment) int { return f(d, s) })
			}
		}
	}
}

// visit is Engine.visit of one tag. It gets all other segments, because it walks the list from the end, and the last of
// the list replaces a segment that goes.
func (t *tag) visit(e *Engine, p *pace, f func(*segment) int) {
	for i := len(t.segments) - 1; i >= 0; i = min(i, len(t.segments)) - 1 {
		p.yield(e, f(t.segments[i]))
	}
}

// choose lists the segments with the tags (nil: every tag) that are wanted. It claims nothing: they may go, or become
// something else, at any time.
func (e *Engine) choose(tags []string, wanted func(*segment) bool) (found []*segment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := map[*segment]bool{}
	e.visit(tags, func(_ *device, s *segment) int {
		if wanted(s) && !seen[s] {
			seen[s] = true
			found = append(found, s)
		}
		return 1
	})
	return found
}

// filter lists the items of a list that keep picks.
func filter[T any](list []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(one T) bool { return !keep(one) })
}
