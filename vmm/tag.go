package vmm

import (
	"slices"

	"tms/vmm/space"
)

// tag is the segments of one device that pause and resume together.
type tag struct {
	name        string
	segments    []*segment
	ranges      *space.Ranges[segment]
	slack       map[slackKind][]*segment
	slackSizes  map[*space.Room][]uint32 // in granules, in their order, of what slack has in a room, or in none
	slabs       map[slabKind]*slabs      // with room for more small allocations, as far as is known
	lines       map[order]*line          // frees in the order of streams
	recent      *line                    // of lines, the last that was looked for, or nil
	idle        shelf                    // those that their streams have reached
	lastPause   float64                  // seconds
	lastResume  float64
	pausedSince float64 // seconds since 1970
	pausedBy    uint64  // see PausedBy, or 0 if nothing is paused
	paused      int     // segments that are paused
	gated       int     // segments that are paused by a gated pause
	granules    uint64  // of all slack
}

func (d *device) newTag(name string) *tag {
	ranges := d.space.NewRanges(space.Device{Ordinal: d.ordinal, Granularity: d.granularity, Total: d.total})
	return &tag{name: name, ranges: ranges, slack: map[slackKind][]*segment{},
		slackSizes: map[*space.Room][]uint32{}, slabs: map[slabKind]*slabs{}, lines: map[order]*line{}}
}

func (d *device) tag(name string) *tag {
	t := d.tags[name]
	if t == nil {
		t = d.newTag(name)
		d.tags[name] = t
	}
	return t
}

// isEmpty reports whether a tag has neither segments nor addresses. The table has such a tag only while e.mu is held.
func (t *tag) isEmpty() bool { return t.ranges.Empty() && len(t.segments) == 0 }

// retire forgets a tag that has nothing left: a program may use a new tag for each of its steps.
func (d *device) retire(t *tag) {
	if t.isEmpty() && d.tags[t.name] == t {
		delete(d.tags, t.name)
		d.dropLines(t)
	}
}

func (t *tag) add(s *segment) {
	s.device.count(s, int64(s.length()))
	s.tag, s.index = t, len(t.segments)
	if s.state == paused {
		t.paused++
	}
	t.segments = append(t.segments, s)
}

func (t *tag) remove(s *segment) {
	if s.gated {
		s.gated = false // it may become slack, and serve an allocation later
		s.device.gated--
		t.gated--
	}
	if s.state == paused {
		t.lessPaused()
	}
	s.expose(false)
	delete(s.device.woken, s)
	s.device.count(s, -int64(s.length()))
	t.segments = removeAt(t.segments, s.index)
}

// removeAt takes a segment out of a list in which each knows its index.
func removeAt(list []*segment, index int) []*segment {
	last := len(list) - 1
	list[index], list[last].index = list[last], index
	return slices.Delete(list, last, last+1)
}

// inTag reports whether a segment is among those of its tag.
func (s *segment) inTag() bool { return s.index < len(s.tag.segments) && s.tag.segments[s.index] == s }

// become changes the state of a segment. The caller holds the engine's lock.
func (s *segment) become(state state) {
	if s.inTag() && s.state != state {
		if state == paused {
			s.tag.paused++
		} else if s.state == paused {
			s.tag.lessPaused()
		}
	}
	s.state = state
}

func (t *tag) lessPaused() {
	if t.paused--; t.paused == 0 {
		t.pausedBy = 0
	}
}
