package vmm

// place finds addresses for a segment of a tag. The caller holds e.mu.
func (e *Engine) place(d *device, t *tag, granules uint32) (*segment, error) {
	s := &segment{device: d, tag: t}
	for _, r := range t.ranges {
		if s.span = r.allocate(granules); s.span != nil {
			s.place = r
			break
		}
	}
	if s.span == nil {
		r, err := e.newRange(d, granules)
		if err != nil {
			return nil, err
		}
		t.ranges = append(t.ranges, r)
		s.place, s.span = r, r.allocate(granules)
	}
	s.address = s.place.address(s.span)
	return s, nil
}

// vacate gives a segment's addresses back.
func (e *Engine) vacate(s *segment) {
	r, t := s.place, s.tag
	r.used -= s.span.count
	r.space.release(s.span)
	if r.used > 0 {
		return
	}
	r.arena.ranges.release(r.span)
	for i := range t.ranges {
		if t.ranges[i] == r {
			t.ranges = append(t.ranges[:i], t.ranges[i+1:]...)
			return
		}
	}
}

func (e *Engine) newRange(d *device, granules uint32) (*addressRange, error) {
	for _, a := range e.arenas {
		if a.ordinal == d.ordinal {
			if r := a.newRange(granules); r != nil {
				return r, nil
			}
		}
	}
	a, err := e.reserve(d, uint64(granules)*d.granularity)
	if err != nil {
		return nil, err
	}
	return a.newRange(granules), nil
}

// reserve adds an arena to a device. Where addresses are short (ulimit -v) it asks for less, down
// to what one segment needs.
func (e *Engine) reserve(d *device, need uint64) (*arena, error) {
	for size := uint64(arenaSize); ; size /= 2 {
		base, err := e.driver.MemAddressReserve(size, d.granularity)
		if err != nil {
			if size/2 < need+d.granularity {
				return nil, err
			}
			continue
		}
		if err := e.announce(base, size); err != nil {
			_ = e.driver.MemAddressFree(base, size)
			return nil, err
		}
		a := newArena(base, size, d.granularity, d.ordinal)
		e.arenas = append(e.arenas, a)
		return a, nil
	}
}
