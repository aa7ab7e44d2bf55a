package small

import "testing"

// FuzzSlab makes and frees small allocations in a granule, and keeps track of each unit's owner.
func FuzzSlab(f *testing.F) {
	f.Fuzz(func(t *testing.T, bytes []byte) {
		const units = 200 // not whole groups
		slab := New(units * unit)
		var owner [units]int // 1 and up
		type live struct {
			name   int
			offset uintptr
			size   uint64
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
				slab.Free(gone.offset)
			} else {
				wanted := lowest(owner[:], unitsOf(size))
				offset, ok := slab.Allocate(size)
				if ok != (wanted >= 0) || ok && offset != uintptr(wanted)*unit {
					t.Fatalf("%d bytes at %d, %v; expected unit %d", size, offset, ok, wanted)
				}
				if ok {
					all = append(all, live{name, offset, size})
					total += size
					for u := wanted; u < wanted+unitsOf(size); u++ {
						owner[u] = name
					}
				}
			}
			if slab.Live != len(all) || slab.Bytes != total {
				t.Fatalf("%d allocations of %d bytes, expected %d of %d", slab.Live, slab.Bytes, len(all), total)
			}
			if name%8 != 0 {
				continue
			}
			if err := slab.Check(); err != nil {
				t.Fatal(err)
			}
			starts := map[int]live{}
			for _, a := range all {
				starts[a.name] = a
			}
			for u, of := range owner {
				offset, ok := slab.Find(uintptr(u)*unit + uintptr(bytes[at]))
				if a := starts[of]; ok != (of != 0) || ok && (offset != a.offset || slab.Size(offset) != a.size) {
					t.Fatalf("unit %d: an allocation at %d, %v; expected %v", u, offset, ok, a)
				}
			}
		}
	})
}

// lowest is the first unit of the lowest row of count free units, or -1 if there is no such row.
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
