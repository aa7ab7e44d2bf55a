package replay

import (
	"math/rand/v2"
	"time"

	"tms/vmm/pool/kinds"
)

// MeasureLive returns the time of a pair of free and malloc, in nanoseconds, in a pool of a kind that has
// so many live blocks of 1 KiB to 1 MiB, over a source that costs nothing. The pairs go to some of the
// blocks, chosen at random: few of them show what grows in the pool, all of them also what the
// processor's caches miss. Errors: pool.ErrOption.
func MeasureLive(kind string, live, among int) (float64, error) {
	p, err := kinds.New(kind, &endless{next: simulatedBase}, nil)
	if err != nil {
		return 0, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	addresses := make([]uintptr, live)
	malloc := func(i int) {
		b, failed := p.Malloc(1<<10+random.Uint64N(1<<(10+random.IntN(11))), 0)
		if failed != nil {
			err = failed
		}
		addresses[i] = b.Address
	}
	for i := range addresses {
		malloc(i)
	}
	const batch = 100_000
	pairs := func() time.Duration {
		begin := time.Now()
		for range batch {
			i := random.IntN(among)
			if failed := p.Free(addresses[i]); failed != nil {
				err = failed
			}
			malloc(i)
		}
		return time.Since(begin)
	}
	for done := 0; done < 2*among; done += batch { // so that what is measured is steady
		pairs()
	}
	best, measureErr := fastest(func() (time.Duration, error) { return pairs(), err })
	return float64(best.Nanoseconds()) / batch, measureErr
}
