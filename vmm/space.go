package vmm

import "math/bits"

// space hands out ranges of an arena's granules and merges what comes back: two-level segregated
// fit (Masmano et al., "TLSF", 2004), so both are O(1) however many ranges there are.
type space struct {
	first  uint32              // bit f: second[f] is not 0
	second [spaceClasses]uint8 // bit s: bins[f][s] is not empty
	bins   [][spaceBins]*span  // free spans by size class, up to that of the whole
}

const (
	spaceClasses = 30 // powers of two, the small sizes together in class 0
	spaceBins    = 8  // bins in each
)

// span is a range of granules, in use or free.
type span struct {
	start, count       uint32
	free               bool
	previous, next     *span // neighbours by address
	binBefore, binNext *span // other free spans of the bin
}

func newSpace(granules uint32) *space {
	largest, _ := bin(granules)
	p := &space{bins: make([][spaceBins]*span, largest+1)}
	p.insert(&span{count: granules})
	return p
}

// bin is where a free span of count granules is kept.
func bin(count uint32) (class, index int) {
	if count < spaceBins {
		return 0, int(count)
	}
	log := bits.Len32(count) - 1
	return log - 2, int(count>>(log-3)) & (spaceBins - 1)
}

func (p *space) insert(s *span) {
	f, i := bin(s.count)
	s.free = true
	s.binBefore, s.binNext = nil, p.bins[f][i]
	if s.binNext != nil {
		s.binNext.binBefore = s
	}
	p.bins[f][i] = s
	p.second[f] |= 1 << i
	p.first |= 1 << f
}

func (p *space) remove(s *span) {
	f, i := bin(s.count)
	s.free = false
	if s.binNext != nil {
		s.binNext.binBefore = s.binBefore
	}
	if s.binBefore != nil {
		s.binBefore.binNext = s.binNext
		return
	}
	p.bins[f][i] = s.binNext
	if s.binNext == nil {
		if p.second[f] &^= 1 << i; p.second[f] == 0 {
			p.first &^= 1 << f
		}
	}
}

// find returns a free span of at least count granules, nil if there is none.
func (p *space) find(count uint32) *span {
	rounded := count
	if count >= spaceBins {
		// Every span of the next bin up is large enough; the spans of the own bin may not be.
		rounded += 1<<(bits.Len32(count)-4) - 1
	}
	f, i := bin(rounded)
	if inClass := p.second[f] >> i << i; inClass != 0 {
		return p.bins[f][bits.TrailingZeros8(inClass)]
	}
	if above := p.first >> (f + 1) << (f + 1); above != 0 {
		f = bits.TrailingZeros32(above)
		return p.bins[f][bits.TrailingZeros8(p.second[f])]
	}
	// The space is nearly full: only a span of the own bin can still do.
	if f, i = bin(count); f >= len(p.bins) {
		return nil
	}
	s := p.bins[f][i]
	for s != nil && s.count < count {
		s = s.binNext
	}
	return s
}

// allocate takes count granules, 0 < count < 2^31; nil when no range is large enough.
func (p *space) allocate(count uint32) *span {
	s := p.find(count)
	if s == nil {
		return nil
	}
	p.remove(s)
	if s.count > count {
		p.insert(p.split(s, count))
	}
	return s
}

// split shortens a span that is in no bin to count granules and returns the rest.
func (p *space) split(s *span, count uint32) *span {
	rest := &span{start: s.start + count, count: s.count - count, previous: s, next: s.next}
	if rest.next != nil {
		rest.next.previous = rest
	}
	s.count, s.next = count, rest
	return rest
}

// release gives a span back.
func (p *space) release(s *span) {
	if n := s.next; n != nil && n.free {
		p.remove(n)
		p.join(s, n)
	}
	if b := s.previous; b != nil && b.free {
		p.remove(b)
		p.join(b, s)
		s = b
	}
	p.insert(s)
}

// join makes one span of two neighbours, neither of which is in a bin.
func (p *space) join(s, next *span) {
	s.count += next.count
	s.next = next.next
	if s.next != nil {
		s.next.previous = s
	}
}
