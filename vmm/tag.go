package vmm

// tag is the segments of one device that are paused and resumed together.
type tag struct {
	name       string
	segments   []*segment
	ranges     []*addressRange
	slack      map[uint32][]*segment // by granules
	small      map[policy][]*segment // with room for more small allocations, as far as is known
	lastPause  float64               // seconds
	lastResume float64
}

func newTag(name string) *tag {
	return &tag{name: name, slack: map[uint32][]*segment{}, small: map[policy][]*segment{}}
}

func (t *tag) add(s *segment) {
	s.tag, s.index = t, len(t.segments)
	t.segments = append(t.segments, s)
}

func (t *tag) remove(s *segment) {
	t.segments = removeAt(t.segments, s.index)
}

// addSlack notes a segment that is free but whose memory cannot leave alone.
func (t *tag) addSlack(s *segment) {
	list := t.slack[s.span.count]
	s.state, s.index = slack, len(list)
	t.slack[s.span.count] = append(list, s)
}

func (t *tag) removeSlack(s *segment) {
	t.slack[s.span.count] = removeAt(t.slack[s.span.count], s.index)
}

func (t *tag) slackBytes(granularity uint64) (bytes uint64) {
	for granules, list := range t.slack {
		bytes += uint64(granules) * uint64(len(list)) * granularity
	}
	return bytes
}

// takeSlack returns a segment of as many granules whose memory is there already, nil if there is none.
func (t *tag) takeSlack(granules uint32) *segment {
	list := t.slack[granules]
	for i := len(list) - 1; i >= 0; i-- {
		if s := list[i]; !s.extent.busy && s.extent.open {
			t.removeSlack(s)
			s.extent.live++
			return s
		}
	}
	return nil
}

// removeAt takes a segment out of a list in which each knows its index.
func removeAt(list []*segment, index int) []*segment {
	last := list[len(list)-1]
	list[index], last.index = last, index
	list[len(list)-1] = nil
	return list[:len(list)-1]
}
