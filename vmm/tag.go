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

// slackKind is the slack that serves the same requests.
type slackKind struct {
	room     *space.Room
	granules uint32
}

func (s *segment) slackKind() slackKind { return slackKind{s.span.Room(), s.span.Granules()} }

func (t *tag) add(s *segment) {
	s.device.count(s, int64(s.length()))
	s.tag, s.index = t, len(t.segments)
	if s.state == paused {
		t.paused++
	}
	t.segments = append(t.segments, s)
}

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

// expose notes whether a segment is exposed. The caller holds the engine's lock.
func (s *segment) expose(now bool) {
	switch {
	case now && !s.exposed:
		s.device.exposed++
	case !now && s.exposed:
		s.device.exposed--
	}
	s.exposed = now
}

// tellPaused is called after anything that may have ended the last gated pause, or changed whether something is exposed.
// The caller holds e.mu.
func (e *Engine) tellPaused() {
	gated, exposed := 0, 0
	for _, d := range e.devices {
		gated += d.gated
		exposed += d.exposed
	}
	if was := e.exposing; was != (exposed > 0) {
		e.exposing = !was
		e.process.Exposed(e.exposing)
	}
	if was := e.gating; was != (gated > 0) {
		e.gating = !was
		e.process.Gated(e.gating)
	}
}

// inTag reports whether a segment is among those of its tag.
func (s *segment) inTag() bool { return s.index < len(s.tag.segments) && s.tag.segments[s.index] == s }

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

// addSlack notes a free segment whose memory cannot be released alone, and joins it with the slack beside it.
func (t *tag) addSlack(s *segment) {
	x := s.extent
	at, _ := slices.BinarySearchFunc(x.segments, s.address, compareAddress)
	if next := at + 1; next < len(x.segments) && x.segments[next].state == slack {
		t.removeSlack(x.segments[next])
		s.span.Join(x.segments[next].span)
		x.segments = slices.Delete(x.segments, next, next+1)
	}
	if last := at - 1; last >= 0 && x.segments[last].state == slack {
		t.removeSlack(x.segments[last])
		x.segments[last].span.Join(s.span)
		s = x.segments[last]
		x.segments = slices.Delete(x.segments, at, at+1)
	}
	t.listSlack(s)
}

func (t *tag) listSlack(s *segment) {
	kind := s.slackKind()
	list := t.slack[kind]
	if len(list) == 0 {
		sizes := t.slackSizes[kind.room]
		at, _ := slices.BinarySearch(sizes, kind.granules)
		t.slackSizes[kind.room] = slices.Insert(sizes, at, kind.granules)
	}
	s.state, s.owner, s.policy, s.index = slack, nobody, policy{}, len(list)
	s.device.count(s, int64(s.length()))
	t.slack[kind] = append(list, s)
	t.granules += uint64(kind.granules)
}

func (t *tag) removeSlack(s *segment) {
	kind := s.slackKind()
	s.device.count(s, -int64(s.length()))
	t.slack[kind] = removeAt(t.slack[kind], s.index)
	t.granules -= uint64(kind.granules)
	if len(t.slack[kind]) > 0 {
		return
	}
	delete(t.slack, kind)
	sizes := t.slackSizes[kind.room]
	at, _ := slices.BinarySearch(sizes, kind.granules)
	if sizes = slices.Delete(sizes, at, at+1); len(sizes) == 0 {
		delete(t.slackSizes, kind.room)
	} else {
		t.slackSizes[kind.room] = sizes
	}
}

func (t *tag) slackBytes(granularity uint64) uint64 { return t.granules * granularity }

// slackTries is at how much slack an allocation looks: a transition may own all of it.
const slackTries = 64

// usableSlack returns the smallest slack in the room that has its memory and at least as many granules.
func (t *tag) usableSlack(granules uint32, room *space.Room) *segment {
	sizes, tries := t.slackSizes[room], 0
	at, _ := slices.BinarySearch(sizes, granules)
	for _, size := range sizes[at:] {
		for _, s := range t.slack[slackKind{room, size}] {
			if s.extent.owner == nobody && s.extent.step == accessible {
				return s
			}
			if tries++; tries == slackTries {
				return nil
			}
		}
	}
	return nil
}

// takeSlack returns a segment of that many granules that already has its memory, split from the smallest slack in the
// room that is large enough; nil if there is none.
func (t *tag) takeSlack(granules uint32, room *space.Room) *segment {
	best := t.usableSlack(granules, room)
	if best == nil {
		return nil
	}
	t.removeSlack(best)
	x := best.extent
	x.live++
	if best.span.Granules() > granules {
		rest := &segment{device: best.device, tag: t, extent: x, span: best.span.Split(granules)}
		rest.address = rest.span.Address()
		at, _ := slices.BinarySearchFunc(x.segments, best.address, compareAddress)
		x.segments = slices.Insert(x.segments, at+1, rest)
		t.listSlack(rest)
	}
	return best
}

// removeAt takes a segment out of a list in which each knows its index.
func removeAt(list []*segment, index int) []*segment {
	last := list[len(list)-1]
	list[index], last.index = last, index
	list[len(list)-1] = nil
	return list[:len(list)-1]
}

// count notes a segment's memory. The caller holds the engine's lock.
func (d *device) count(s *segment, bytes int64) {
	if !s.isOwn() {
		return
	}
	d.has += uint64(bytes)
	if s.ordered {
		d.ordered.reserved += uint64(bytes)
		d.ordered.reservedHigh = max(d.ordered.reservedHigh, d.ordered.reserved)
	}
}

// retire forgets a tag that has nothing left: a program may use a new tag for each of its steps.
func (d *device) retire(t *tag) {
	if t.ranges.Empty() && len(t.segments) == 0 && d.tags[t.name] == t {
		delete(d.tags, t.name)
		d.dropLines(t)
	}
}
