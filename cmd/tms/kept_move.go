package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/sets"
	"tms/vmm/cuda"
)

func keptDemoteCommand() *cobra.Command {
	var to, until string
	var start bool
	command := &cobra.Command{
		Use:   "demote [NAME...]",
		Short: "Copy sets to host memory or disk, and free their device memory",
		Long: `Copies sets to host memory or to files, which belong to no process either, and
frees their device memory. No process may have them open, not even paused. The
next process that opens a set brings it back, as tms kept promote does. With
--until, the sets are those whose last user went longest ago.

Files lie in TMS_DISK_BACKUP_DIR, or else TMPDIR, have no name, and are gone
when the keeper ends, as host memory is.`,
		Example: `  tms kept demote qwen3-8b
  tms kept demote qwen3-8b --to disk
  tms kept demote --until 40G`,
		ValidArgsFunction: completeSets,
		RunE: func(command *cobra.Command, names []string) error {
			if to != control.ToHost && to != control.ToDisk {
				return fmt.Errorf("--to %s: give host or disk", to)
			}
			if start {
				return answerLibrary(command, keepBudget(""))
			}
			if len(names) > 0 && until != "" {
				return errors.New("--until chooses the sets itself: leave it or the names out")
			}
			if until != "" {
				bytes, err := sizeOf("--until", until)
				if err == nil {
					names, err = sets.Excess(bytes, "")
				}
				if err != nil || len(names) == 0 {
					return err
				}
			}
			return moveSets(command, names, to)
		},
	}
	command.Flags().BoolVar(&start, "start", false, "") // for libtms.so, as that of keeperCommand
	_ = command.Flags().MarkHidden("start")
	command.Flags().StringVar(&until, "until", "", "sets without a user until all take `BYTES` of a device")
	completes(command, "until")
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
				return moveSets(command, names, sets.Device)
			}
			_, err := moveSet(names[0], sets.Device)
			return answerLibrary(command, err)
		},
	}
	command.Flags().BoolVar(&start, "start", false, "") // for libtms.so, as that of keeperCommand
	_ = command.Flags().MarkHidden("start")
	return command
}

func moveSets(command *cobra.Command, names []string, to string) error {
	return eachSet(command, names, func(name string) (string, error) { return moveSet(name, to) })
}

func moveSet(name, to string) (words string, err error) {
	if err := startKeeper(); err != nil {
		return "", err
	}
	begin := time.Now()
	if to == sets.Device {
		err = keepBudget(name)
	}
	set, failed := sets.Move(name, to, cmp.Or(os.Getenv("TMS_DISK_BACKUP_DIR"), os.TempDir()))
	if errors.Is(failed, cuda.OutOfMemory) {
		failed = errors.Join(fmt.Errorf("its device has no room for %s: %w", readable.Bytes(set.Bytes), failed), err)
	}
	return fmt.Sprintf("%s %s (%.2f s)", readable.Bytes(set.Bytes), places[to], time.Since(begin).Seconds()), failed
}

// keepBudget demotes sets to host memory for TMS_KEPT_BUDGET, with room for one that is promoted next.
func keepBudget(promoted string) error {
	text := os.Getenv("TMS_KEPT_BUDGET")
	if text == "" {
		return nil
	}
	budget, err := sizeOf("TMS_KEPT_BUDGET", text)
	if err != nil {
		return err
	}
	names, err := sets.Excess(budget, promoted)
	for _, name := range names {
		if _, failed := moveSet(name, control.ToHost); failed != nil {
			err = errors.Join(err, fmt.Errorf("TMS_KEPT_BUDGET: %s stays on the device: %w", readable.Printable(name),
				failed))
		}
	}
	return err
}

var places = map[string]string{
	sets.Device: "on the device", control.ToHost: "in host memory", control.ToDisk: "on disk"}
