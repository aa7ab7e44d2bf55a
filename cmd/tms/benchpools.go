package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"tms/internal/replay"
	"tms/vmm/pool/kinds"
)

// benchPoolsCommand is for scripts/bench.sh, on machines without Go.
func benchPoolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "bench-pools",
		Short:  "Measure a pair of free and malloc among 10^3 to 10^6 live blocks, for every kind of pool",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			lines := json.NewEncoder(command.OutOrStdout())
			for _, kind := range kinds.Names() {
				for live := 1000; live <= 1_000_000; live *= 10 {
					for _, among := range []int{256, live} {
						ns, err := replay.MeasureLive(kind, live, among)
						if err != nil {
							return err
						}
						if err := lines.Encode(struct {
							Pool  string  `json:"pool"`
							Live  int     `json:"live"`
							Among int     `json:"among"`
							Pair  float64 `json:"ns_per_pair"`
						}{kind, live, among, ns}); err != nil {
							return err
						}
					}
				}
			}
			return nil
		},
	}
}
