package pool_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

func TestDirectoryAgainstModel(t *testing.T) {
	const unit, units = 512, 300
	random := rand.New(rand.NewPCG(3, 4))
	var d pool.Directory[int]
	type segment struct{ from, size, owner int }
	var all []segment
	for step := range 4000 {
		from, size := random.IntN(units), 1+random.IntN(8)
		at, free := -1, true // the segment that starts here, and whether none has any of the units
		for i, s := range all {
			if s.from == from {
				at = i
			}
			free = free && (from >= s.from+s.size || s.from >= from+size)
		}
		switch {
		case free:
			d.Enter(uintptr(unit*(1+from)), uint64(unit*size), step)
			all = append(all, segment{from, size, step})
		case step%1000 == 999:
			isOdd := func(owner int) bool { return owner%2 == 1 }
			d.Drop(isOdd)
			kept := all[:0]
			for _, s := range all {
				if !isOdd(s.owner) {
					kept = append(kept, s)
				}
			}
			all = kept
		default:
			require.Equal(t, at >= 0, d.Remove(uintptr(unit*(1+from))))
			if at >= 0 {
				all = append(all[:at], all[at+1:]...)
			}
		}
		probe := random.IntN(unit * (units + 9))
		want, inside := 0, false
		for _, s := range all {
			if unit*s.from <= probe && probe < unit*(s.from+s.size) {
				want, inside = s.owner, true
			}
		}
		owner, found := d.Find(uintptr(unit + probe))
		require.Equal(t, inside, found)
		require.Equal(t, want, owner)
	}
}
