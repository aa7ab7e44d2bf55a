package vmm

import "testing"

// FuzzSpace takes and gives back ranges, and keeps who has which unit.
func FuzzSpace(f *testing.F) {
	const units = 512
	f.Fuzz(func(t *testing.T, bytes []byte) {
		space := newSpace(units)
		var owner [units]*span
		var all []*span
		for at := 0; at+1 < len(bytes); at += 2 {
			if n := int(bytes[at+1]); bytes[at]%3 == 0 && len(all) > 0 {
				s := all[n%len(all)]
				all[n%len(all)] = all[len(all)-1]
				all = all[:len(all)-1]
				for u := s.start; u < s.start+s.count; u++ {
					owner[u] = nil
				}
				space.release(s)
			} else if s := space.allocate(uint32(n + 1)); s != nil {
				if s.count != uint32(n+1) || s.start+s.count > units {
					t.Fatalf("%d units at %d for %d", s.count, s.start, n+1)
				}
				for u := s.start; u < s.start+s.count; u++ {
					if owner[u] != nil {
						t.Fatalf("unit %d is given twice", u)
					}
					owner[u] = s
				}
				all = append(all, s)
			} else if longest(owner[:]) > n {
				t.Fatalf("no room for %d units, where %d are free", n+1, longest(owner[:]))
			}
			if len(all) == 0 {
				continue
			}
			var used uint32
			for _, s := range all {
				used += s.count
			}
			if err := all[0].check(units, used, func(s *span) bool { return owner[s.start] == s }); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// longest is the most units in a row that nobody has.
func longest(owner []*span) (most int) {
	run := 0
	for _, s := range owner {
		if run++; s != nil {
			run = 0
		}
		most = max(most, run)
	}
	return most
}
