package vmm

import "testing"

// FuzzShared makes and frees small allocations in a granule, and keeps who has which unit.
func FuzzShared(f *testing.F) {
	f.Fuzz(func(t *testing.T, bytes []byte) {
		const units = 200 // not whole groups
		h := newShared(units * unit)
		var owner [units]int // 1 and up
		type live struct {
			name, first int
			size        uint64
		}
		var all []live
		total := uint64(0)
		for at, name := 0, 1; at+2 < len(bytes); at, name = at+3, name+1 {
			// Mostly few units, at times up to all of them.
			size := uint64(bytes[at+1])<<8 | uint64(bytes[at+2])
			if size = size>>(bytes[at]>>4) + 1; bytes[at]&3 == 0 && len(all) > 0 {
				n := int(size) % len(all)
				gone := all[n]
				all[n] = all[len(all)-1]
				all = all[:len(all)-1]
				total -= gone.size
				for u, of := range owner {
					if of == gone.name {
						owner[u] = 0
					}
				}
				h.remove(gone.first)
			} else {
				wanted := lowest(owner[:], unitsOf(size))
				offset, ok := h.allocate(size)
				if ok != (wanted >= 0) || ok && offset != uintptr(wanted)*unit {
					t.Fatalf("%d bytes at %d, %v; expected unit %d", size, offset, ok, wanted)
				}
				if ok {
					all = append(all, live{name, wanted, size})
					total += size
					for u := wanted; u < wanted+unitsOf(size); u++ {
						owner[u] = name
					}
				}
			}
			if h.live != len(all) || h.bytes != total {
				t.Fatalf("%d allocations of %d bytes, expected %d of %d", h.live, h.bytes, len(all), total)
			}
			if name%8 != 0 {
				continue
			}
			starts := map[int]live{}
			for _, a := range all {
				starts[a.name] = a
			}
			for u, of := range owner {
				first, ok := h.find(uintptr(u)*unit + uintptr(bytes[at]))
				if a := starts[of]; ok != (of != 0) || ok && (first != a.first || h.size(first) != a.size) {
					t.Fatalf("unit %d: an allocation at %d, %v; expected %v", u, first, ok, a)
				}
			}
		}
	})
}

// lowest is the first of so many free units in a row, -1 if there are none.
func lowest(owner []int, count int) int {
	run := 0
	for u, of := range owner {
		if run++; of != 0 {
			run = 0
		}
		if run == count {
			return u + 1 - count
		}
	}
	return -1
}
