package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/sets"
	"tms/internal/sets/checksum"
)

// verified is what --json says of a set.
type verified struct {
	Name    string            `json:"name"`
	Bytes   uint64            `json:"bytes"`
	Seconds float64           `json:"seconds"`
	Changes []checksum.Change `json:"changes"`
	Error   string            `json:"error"` // "" if it is as it was published
}

func keptVerifyCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "verify NAME...",
		Short: "Compare the contents of sets with what was published",
		Long: `Hashes sets on their devices, in blocks of 2 MiB, and compares that with the
hashes of when they were published. It names the tensors in blocks that differ.
Of a demoted set, one chunk at a time goes to the device, which needs room.`,
		Example: `  tms kept verify qwen3-8b
  tms kept verify qwen3-8b --json`,
		ValidArgsFunction: completeSets,
		RunE: func(command *cobra.Command, names []string) error {
			all := []verified{}
			failed := eachSet(command, names, func(name string) (string, error) {
				begin := time.Now()
				err := startKeeper()
				v := verified{Name: name, Changes: []checksum.Change{}}
				if err == nil {
					set, changes, failed := sets.Verify(name)
					v.Bytes, v.Changes, err = set.Bytes, append(v.Changes, changes...), failed
				}
				if v.Seconds = time.Since(begin).Seconds(); err != nil {
					v.Error = err.Error()
				}
				all = append(all, v)
				if asJSON {
					return "", err
				}
				return fmt.Sprintf("%s are as published (%.2f s)", readable.Bytes(v.Bytes), v.Seconds), err
			})
			if asJSON {
				return cmp.Or(writeJSON(command.OutOrStdout(), all), failed)
			}
			return failed
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}
