package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/control"
	"tms/internal/readable"
	"tms/internal/tier"
	"tms/vmm/cuda"
)

func keptDemoteCommand() *cobra.Command {
	var to string
	command := &cobra.Command{
		Use:   "demote NAME...",
		Short: "Copy sets to host memory or disk, and free their device memory",
		Long: `Copies sets to host memory or to files, which belong to no process either, and
frees their device memory. No process may have them open, not even paused. The
next process that opens a set brings it back, as tms kept promote does.

Files lie in TMS_DISK_BACKUP_DIR, or else TMPDIR, have no name, and are gone
when the keeper ends, as host memory is.`,
		Example: `  tms kept demote qwen3-8b
  tms kept demote qwen3-8b --to disk`,
		ValidArgsFunction: completeSets,
		RunE: func(command *cobra.Command, names []string) error {
			if to != control.ToHost && to != control.ToDisk {
				return fmt.Errorf("--to %s: give host or disk", to)
			}
			return moveSets(command, names, to)
		},
	}
	command.Flags().StringVar(&to, "to", control.ToHost, "host or disk")
	completes(command, "to", control.ToHost, control.ToDisk)
	return command
}

func keptPromoteCommand() *cobra.Command {
	var start bool
	command := &cobra.Command{
		Use:   "promote NAME...",
		Short: "Copy sets back to their devices",
		Long: `Copies sets from host memory or disk back to the devices on which they were
published. Opening a set does this too.`,
		Example:           `  tms kept promote qwen3-8b`,
		ValidArgsFunction: completeSets,
		RunE: func(command *cobra.Command, names []string) error {
			if !start || len(names) == 0 {
				return moveSets(command, names, tier.Device)
			}
			_, err := tier.Move(names[0], tier.Device, "")
			return answerLibrary(command, err)
		},
	}
	command.Flags().BoolVar(&start, "start", false, "") // for libtms.so, as that of keeperCommand
	_ = command.Flags().MarkHidden("start")
	return command
}

func moveSets(command *cobra.Command, names []string, to string) error {
	directory := cmp.Or(os.Getenv("TMS_DISK_BACKUP_DIR"), os.TempDir())
	return eachSet(command, names, func(name string) (string, error) {
		if err := startKeeper(); err != nil {
			return "", err
		}
		begin := time.Now()
		set, err := tier.Move(name, to, directory)
		if errors.Is(err, cuda.OutOfMemory) {
			err = fmt.Errorf("its device has no room for %s: %w", readable.Bytes(set.Bytes), err)
		}
		return fmt.Sprintf("%s %s (%.2f s)", readable.Bytes(set.Bytes), places[to], time.Since(begin).Seconds()), err
	})
}

var places = map[string]string{
	tier.Device: "on the device", control.ToHost: "in host memory", control.ToDisk: "on disk"}
