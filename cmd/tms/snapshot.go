package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/snapshot/tree"
)

// snapshotLease is a variable for tests.
var snapshotLease = tree.DefaultLease

func snapshotCommand() *cobra.Command {
	var timeout, every duration
	var force, stop, asJSON bool
	var keep int
	command := &cobra.Command{
		Use:   "snapshot PID DIR",
		Short: "Write a running program into a directory, to start it from there",
		Long: `Pauses everything of a process and of all below it, and writes them and their
GPU memory into DIR. The program then goes on, or with --stop it ends. CRIU 4.2
or later does the processes' part, and needs root. With --every the command goes
on until the program ends, and keeps the newest snapshots of it.`,
		Example: `  tms snapshot 12345 /var/lib/warm
  tms snapshot 12345 /var/lib/warm --stop
  tms snapshot 12345 /data/training --every 10m --keep 3
  tms restore /var/lib/warm`,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) != 2 {
				return errors.New("give the number of a process, and a directory: tms snapshot PID DIR")
			}
			_, err := processes(arguments[:1])
			return err
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			ctx, _ := interruptible()
			pids, err := processes(arguments[:1])
			if err != nil {
				return err
			}
			take := tree.Take{PID: pids[0], Directory: arguments[1], Stop: stop, User: "tms snapshot", Lease: snapshotLease,
				Pause: tree.Pausing(timeout.Seconds(), force), Say: saying(command)}
			say := func(taken *tree.Taken) error { return saySnapshot(command, taken, stop, asJSON) }
			switch again := command.Flags().Changed("every"); {
			case again && (stop || keep < 0):
				return errors.New("--every excludes --stop, and --keep is a number of snapshots, or 0 for all")
			case again:
				return snapshotEvery(ctx, command, take, every.Duration, keep, say)
			case command.Flags().Changed("keep"):
				return errors.New("--keep goes with --every; tms snapshots prune DIR --keep removes snapshots")
			}
			taken, err := take.Do(ctx)
			if err != nil {
				fmt.Fprintf(command.ErrOrStderr(), "tms: %d: %v\n", pids[0], err)
				return errNo
			}
			return say(taken)
		},
	}
	addTimeout(command, &timeout, &force)
	every.least = time.Second
	addTime(command, &every, "every", 0, "take a snapshot each `TIME`, until the program ends")
	command.Flags().IntVar(&keep, "keep", 2, "with --every, keep `NUMBER` of its snapshots")
	command.Flags().BoolVar(&stop, "stop", false, "end the program once its snapshot is complete")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	command.ValidArgsFunction = completeProcesses
	return command
}

// saySnapshot says what was taken, in a line.
func saySnapshot(command *cobra.Command, taken *tree.Taken, stop, asJSON bool) error {
	for _, words := range []string{taken.Note, taken.Warning} {
		if words != "" {
			fmt.Fprintf(command.ErrOrStderr(), "tms: %s\n", words)
		}
	}
	if asJSON {
		return writeJSON(command.OutOrStdout(), taken)
	}
	of := "1 process"
	if count := len(taken.Processes); count != 1 {
		of = fmt.Sprintf("%d processes", count)
	}
	after := fmt.Sprintf("the program stood still for %.2f s", taken.Stood)
	if stop {
		after = "the program has ended"
	}
	_, err := fmt.Fprintf(command.OutOrStdout(), "%s: %s of contents (%s new), %s of host memory (%s new) and %s more of %s "+
		"in %.2f s; %s\n", taken.Name, readable.Bytes(uint64(taken.Read+taken.Zero)), readable.Bytes(uint64(taken.Written)),
		readable.Bytes(uint64(taken.Memory.Read)), readable.Bytes(uint64(taken.Memory.Written)),
		readable.Bytes(uint64(taken.Images)), of, taken.Seconds, after)
	return err
}

func restoreCommand() *cobra.Command {
	var wait duration
	var name, hook string
	var to []string
	var count int
	var asJSON bool
	command := &cobra.Command{
		Use:   "restore DIR",
		Short: "Start a program from its snapshot",
		Long: `Starts what tms snapshot has written into DIR: the processes with their numbers,
and their GPU memory at the same addresses. Where other processes have these
numbers, and for each copy of -n, it makes a PID namespace. The command returns
when the program goes on, which then belongs to no terminal.`,
		Example: `  tms restore /var/lib/warm
  tms restore /var/lib/warm -n 4 --to 0,1,2,3 --hook ./ports.sh
  tms restore /var/lib/warm --name 20261128T181500.000Z-12345`,
		Args: func(_ *cobra.Command, arguments []string) error {
			switch {
			case len(arguments) == 0:
				return errors.New("give the directory of a snapshot: tms restore DIR")
			case len(arguments) > 1:
				return fmt.Errorf("one directory is restored at a time, and %q is another: tms restore DIR (--name names "+
					"one of its snapshots)", arguments[1])
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if command.Flags().Changed("copies") && count < 1 {
				return errors.New("-n takes a number of copies from 1 on")
			}
			ctx, _ := interruptible()
			copies, err := tree.Restore{Directory: arguments[0], Name: name, Wait: wait.Duration, Copies: count, To: to,
				Hook: hook, Say: saying(command)}.Do(ctx)
			if err != nil {
				fmt.Fprintf(command.ErrOrStderr(), "tms: %v\n", err)
				return errNo
			}
			for _, one := range copies {
				if one.Error != "" {
					fmt.Fprintf(command.ErrOrStderr(), "tms: copy %d: %s\n", one.Copy, one.Error)
					err = errNo
				}
				if asJSON {
					if err := writeJSON(command.OutOrStdout(), one); err != nil {
						return err
					}
				} else if one.Error == "" {
					fmt.Fprintln(command.OutOrStdout(), restoredLine(one))
				}
			}
			return err
		},
	}
	addWait(command, &wait)
	command.Flags().StringVar(&name, "name", "", "the snapshot of this `NAME` (default: the newest)")
	command.Flags().IntVarP(&count, "copies", "n", 0, "start this `NUMBER` of copies, each with PIDs of its own")
	command.Flags().StringSliceVar(&to, "to", nil, "the `GPUS` of the program, or of the copies in turn")
	command.Flags().StringVar(&hook, "hook", "", "run this `PROGRAM` for each before it resumes")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON object for each")
	return command
}

// saying tells the user why a command waits.
func saying(command *cobra.Command) func(words string) {
	return func(words string) { fmt.Fprintf(command.ErrOrStderr(), "tms: %s\n", words) }
}

func restoredLine(one *tree.Restored) string {
	of := one.Name
	if one.Within != nil {
		of = fmt.Sprintf("copy %d of %s (process %d in its PID namespace)", one.Copy, one.Name, one.Within[0])
	}
	return fmt.Sprintf("%d: %s goes on after %.2f s: processes in %.2f s, contents beside them in %.2f s, resumed in %.2f s",
		one.Processes[0], of, one.Seconds, one.Process, one.Contents, one.Resume)
}
