package vmm

import (
	"slices"

	"tms/vmm/mapping"
	"tms/vmm/space"
)

// slackKind is the slack that serves the same requests.
type slackKind struct {
	room     *space.Room
	granules uint32
}

func (s *segment) slackKind() slackKind { return slackKind{s.span.Room(), s.span.Granules()} }

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

// slackTries is at how much slack an allocation looks: a transition may own all of it.
const slackTries = 64

// usableSlack returns the smallest slack in the room that has its memory and at least as many granules.
func (t *tag) usableSlack(granules uint32, room *space.Room) *segment {
	sizes, tries := t.slackSizes[room], 0
	at, _ := slices.BinarySearch(sizes, granules)
	for _, size := range sizes[at:] {
		for _, s := range t.slack[slackKind{room, size}] {
			if s.extent.owner == nobody && s.extent.Step == mapping.Accessible {
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
