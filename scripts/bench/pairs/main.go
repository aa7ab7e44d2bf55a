// Command pairs measures what a free and a malloc cost together among 10^3 to 10^6 live blocks, for every kind of pool,
// and how much of that is the machine's, waiting for memory that its caches do not hold. It is for scripts/bench.sh.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

func main() {
	if err := measure(os.Stdout, 1_000_000, 20_000); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// point is the nanoseconds of a pair in a pool, or of the floor.
type point struct {
	Pool  string  `json:"pool"`
	Live  int     `json:"live"`
	Among int     `json:"among"`
	Keep  bool    `json:"same_sizes"`
	Pair  float64 `json:"ns_per_pair"`
}

const ofFloor = "floor" // in the place of a kind

// measure measures with up to most live blocks, in rounds of count pairs.
func measure(out io.Writer, most, count int) error {
	lines := json.NewEncoder(out)
	for live := 1000; live <= most; live *= 10 {
		for _, pattern := range []point{{Among: live}, {Among: 256}, {Among: 256, Keep: true}} {
			pattern.Live = live
			points, err := measurePairs(pattern, count)
			if err != nil {
				return err
			}
			for _, p := range points {
				if err := lines.Encode(p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measurePairs measures the kinds and, where the pairs go to any block, the floor, in rounds by turns, so
// that what else the machine does meets both. The fastest counts.
func measurePairs(pattern point, count int) (points []point, err error) {
	const rounds = 12
	under, beneath := pattern, (*live)(nil)
	under.Pool = ofFloor
	if pattern.Among == pattern.Live {
		if beneath, err = fill(newFloor(pattern.Live), pattern.Live, pattern.Among, false); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds.Names() {
		p, err := kinds.New(kind, &pool.Endless{}, nil)
		if err != nil {
			return nil, err
		}
		l, err := fill(p, pattern.Live, pattern.Among, pattern.Keep)
		if err != nil {
			return nil, err
		}
		runtime.GC() // what filling left behind is not the pairs'
		point := pattern
		point.Pool = kind
		for range rounds {
			if err := point.measure(l, count); err != nil {
				return nil, err
			}
			if beneath != nil {
				if err := under.measure(beneath, count); err != nil {
					return nil, err
				}
			}
		}
		points = append(points, point)
	}
	if beneath != nil {
		points = append(points, under)
	}
	return points, nil
}

// measure times a round; the point keeps the fastest.
func (p *point) measure(l *live, count int) error {
	ns, err := l.time(count)
	if p.Pair == 0 || ns < p.Pair {
		p.Pair = ns
	}
	return err
}
