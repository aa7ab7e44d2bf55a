package main

import (
	"encoding/json"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"tms/vmm/pool/kinds"
	"tms/vmm/pool/pairs"
)

// benchPoolsCommand is for scripts/bench.sh, on machines without Go.
func benchPoolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "bench-pools",
		Short:  "Measure a pair of free and malloc among 10^3 to 10^6 live blocks, for every kind of pool",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return benchPools(command.OutOrStdout(), 1_000_000, 20_000)
		},
	}
}

// livePoint is the nanoseconds of a pair in a pool, or of the floor.
type livePoint struct {
	Pool  string  `json:"pool"`
	Live  int     `json:"live"`
	Among int     `json:"among"`
	Keep  bool    `json:"same_sizes"`
	Pair  float64 `json:"ns_per_pair"`
}

const floor = "floor" // in the place of a kind

// benchPools measures among so many live blocks at most, in rounds of count pairs.
func benchPools(out io.Writer, most, count int) error {
	lines := json.NewEncoder(out)
	for live := 1000; live <= most; live *= 10 {
		for _, pattern := range []livePoint{{Among: live}, {Among: 256}, {Among: 256, Keep: true}} {
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
func measurePairs(pattern livePoint, count int) (points []livePoint, err error) {
	const rounds = 12
	under, beneath := pattern, (*pairs.Live)(nil)
	under.Pool = floor
	if pattern.Among == pattern.Live {
		if beneath, err = pairs.New(pairs.NewFloor(pattern.Live), pattern.Live, pattern.Among, false); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds.Names() {
		p, err := kinds.New(kind, &pairs.Endless{}, nil)
		if err != nil {
			return nil, err
		}
		l, err := pairs.New(p, pattern.Live, pattern.Among, pattern.Keep)
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
func (p *livePoint) measure(l *pairs.Live, count int) error {
	ns, err := l.Time(count)
	if p.Pair == 0 || ns < p.Pair {
		p.Pair = ns
	}
	return err
}
