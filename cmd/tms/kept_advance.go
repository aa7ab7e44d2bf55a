package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/sets"
)

func keptAdvanceCommand() *cobra.Command {
	var timeout duration
	var back bool
	command := &cobra.Command{
		Use:   "advance NAME...",
		Short: "Have processes map the newest version of sets",
		Long: `Has each process that follows a set map its newest complete version, at the same
addresses and between two steps that the program marks. Nothing is copied. With
--back it maps the version before again, if it has kept that. A process that
cannot keeps the version that it has.

Engines of vLLM and sglang, and ranks of a job, move by calls of their own.`,
		Example: `  tms kept advance policy
  tms kept advance policy --back`,
		ValidArgsFunction: completeSets,
		RunE: func(command *cobra.Command, names []string) error {
			ctx, _ := interruptible()
			return eachSet(command, names, func(name string) (words string, err error) {
				if err = startKeeper(); err != nil {
					return "", err
				}
				followers, err := sets.Advance(ctx, name, back, timeout.Duration)
				if err == nil && len(followers) == 0 {
					err = errors.New("no process follows it and marks its steps (tms.Following.step)")
				}
				for _, one := range followers {
					if one.Error != "" {
						err = errors.Join(err, fmt.Errorf("process %d: %s", one.PID, one.Error))
						continue
					}
					fmt.Fprintf(command.OutOrStdout(), "%s: process %d has version %d\n", readable.Printable(name), one.PID,
						one.Version)
				}
				return "", err
			})
		},
	}
	addTime(command, &timeout, "timeout", control.DefaultTimeout*time.Second, "`TIME` to wait for a step to end")
	command.Flags().BoolVar(&back, "back", false, "the version before the last advance")
	return command
}
