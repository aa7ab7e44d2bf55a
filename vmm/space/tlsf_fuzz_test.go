package space

import "testing"

// FuzzTLSF takes and gives back ranges, and keeps track of each granule's owner.
func FuzzTLSF(f *testing.F) {
	const granules = 512
	f.Fuzz(func(t *testing.T, bytes []byte) {
		fit := newTLSF(granules)
		var owner [granules]*block
		var all []*block
		for at := 0; at+1 < len(bytes); at += 2 {
			if n := int(bytes[at+1]); bytes[at]%3 == 0 && len(all) > 0 {
				s := all[n%len(all)]
				all[n%len(all)] = all[len(all)-1]
				all = all[:len(all)-1]
				for g := s.start; g < s.start+s.count; g++ {
					owner[g] = nil
				}
				fit.release(s)
			} else if s := fit.allocate(uint32(n + 1)); s != nil {
				if s.count != uint32(n+1) || s.start+s.count > granules {
					t.Fatalf("%d granules at %d for %d", s.count, s.start, n+1)
				}
				for g := s.start; g < s.start+s.count; g++ {
					if owner[g] != nil {
						t.Fatalf("granule %d is given twice", g)
					}
					owner[g] = s
				}
				all = append(all, s)
			} else if longest(owner[:]) > n {
				t.Fatalf("no room for %d granules, where %d are free", n+1, longest(owner[:]))
			}
			if len(all) == 0 {
				continue
			}
			var used uint32
			for _, s := range all {
				used += s.count
			}
			if err := fit.check(granules, used, func(s *block) bool { return owner[s.start] == s }); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// longest is the most granules in a row that nobody has.
func longest(owner []*block) (most int) {
	run := 0
	for _, s := range owner {
		if run++; s != nil {
			run = 0
		}
		most = max(most, run)
	}
	return most
}
