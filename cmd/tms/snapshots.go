package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/snapshot"
)

// snapshotCheck is what check says of a directory with --json.
type snapshotCheck struct {
	Directory string             `json:"directory"`
	Bytes     int64              `json:"bytes"` // that were read
	Seconds   float64            `json:"seconds"`
	Damage    []*snapshot.Damage `json:"damage"`
}

// snapshotPrune is what prune says with --json.
type snapshotPrune struct {
	Directory string `json:"directory"`
	DryRun    bool   `json:"dry_run"`
	*snapshot.Pruned
}

func snapshotsCommand() *cobra.Command {
	var asJSON, needs bool
	command := &cobra.Command{
		Use:   "snapshots [DIR [NAME]]",
		Short: "List the snapshots in a directory, with sizes and what they need",
		Long: `Lists the snapshots in DIR, or in the current directory, oldest first. CONTENTS
is what the programs had in device memory, MEMORY what they had to themselves in
host memory, BLOCKS what both take on disk, OWN the part of it that no other
snapshot shares, and FILES the rest of the programs.`,
		Example: `  tms snapshots /data/snapshots
  tms snapshots /data/snapshots --needs`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completeSnapshots,
		RunE: func(command *cobra.Command, arguments []string) error {
			d, name, err := findSnapshots(arguments)
			if err != nil {
				return err
			}
			list, err := d.List()
			if err != nil {
				return err
			}
			if name != "" {
				list = slices.DeleteFunc(list, func(e snapshot.Entry) bool { return e.Name != name })
				if len(list) == 0 {
					return fmt.Errorf("%s has no snapshot %s", d.Path(), name)
				}
			}
			if asJSON {
				return writeJSON(command.OutOrStdout(), d.Listed(list))
			}
			if len(list) == 0 {
				fmt.Fprintf(command.ErrOrStderr(), "tms: %s has no snapshots\n", d.Path())
				return nil
			}
			return showSnapshots(command, list, needs)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	command.Flags().BoolVar(&needs, "needs", false, "say what each needs to be restored")
	command.AddCommand(snapshotsCheckCommand(), snapshotsPruneCommand())
	return command
}

// findSnapshots opens the directory that arguments name, with the name of a snapshot if there is one.
func findSnapshots(arguments []string) (*snapshot.Directory, string, error) {
	path := "."
	if len(arguments) > 0 {
		path = arguments[0]
	}
	d, name, err := snapshot.Find(path)
	if len(arguments) > 1 {
		if name != "" {
			return nil, "", fmt.Errorf("%s is a snapshot: leave %s out", path, arguments[1])
		}
		name = arguments[1]
	}
	return d, name, err
}

func completeSnapshots(_ *cobra.Command, arguments []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	switch len(arguments) {
	case 0:
		return nil, cobra.ShellCompDirectiveFilterDirs
	case 1:
		if d, err := snapshot.Open(arguments[0]); err == nil {
			list, _ := d.List()
			for _, e := range list {
				names = append(names, e.Name)
			}
		}
	}
	return completable(names), cobra.ShellCompDirectiveNoFileComp
}

func showSnapshots(command *cobra.Command, list []snapshot.Entry, needs bool) error {
	table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SNAPSHOT\tAGE\tCONTENTS\tMEMORY\tBLOCKS\tOWN\tFILES\tPROCESSES")
	for _, e := range list {
		age, processes := "-", "-"
		if !e.Made.IsZero() {
			age = readable.Age(time.Since(e.Made))
		}
		if len(e.Processes) > 0 {
			processes = readable.Cut(readable.Printable(strings.Join(e.Processes[0].Command, " ")), 40)
			if more := len(e.Processes) - 1; more > 0 {
				processes += fmt.Sprintf(" and %d more", more)
			}
		}
		row := []string{readable.Printable(e.Name), age}
		for _, bytes := range []int64{e.Contents, e.Memory, e.Blocks, e.Own, e.Files} {
			row = append(row, readable.Short(uint64(bytes)))
		}
		fmt.Fprintln(table, strings.Join(append(row, processes), "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, e := range list {
		if words := needsOf(e.Needs); needs && words != "" {
			fmt.Fprintf(command.OutOrStdout(), "%s needs %s\n", readable.Printable(e.Name), readable.Printable(words))
			for _, file := range e.Needs.Mapped {
				fmt.Fprintf(command.OutOrStdout(), "  %s  %s\n", readable.Printable(file.Path), readable.Printable(file.ID))
			}
			for _, folder := range e.Needs.Caches {
				fmt.Fprintf(command.OutOrStdout(), "  %s  compiled code, which the program makes again where it is missing\n",
					readable.Printable(folder))
			}
		}
		if e.Problem != "" {
			fmt.Fprintf(command.ErrOrStderr(), "tms: %s: %s\n", readable.Printable(e.Name), readable.Printable(e.Problem))
		}
	}
	return nil
}

// needsOf says what must be the same where a snapshot is restored.
func needsOf(n snapshot.Needs) string {
	var words []string
	for i, gpu := range n.GPUs {
		if i == 0 || gpu.Model != n.GPUs[i-1].Model {
			same := func(other snapshot.GPU) bool { return other.Model == gpu.Model }
			rest := n.GPUs[i:]
			count := len(rest)
			if other := slices.IndexFunc(rest, func(g snapshot.GPU) bool { return !same(g) }); other >= 0 {
				count = other
			}
			words = append(words, fmt.Sprintf("%d %s", count, gpu.Model))
		}
	}
	for _, part := range []struct{ name, value string }{{"driver", n.Driver}, {"CRIU", n.CRIU}, {"", n.Machine}} {
		if part.value != "" {
			words = append(words, strings.TrimSpace(part.name+" "+part.value))
		}
	}
	if n.Kernel != "" {
		words = append(words, "made on kernel "+n.Kernel)
	}
	if len(n.Mapped) > 0 {
		words = append(words, fmt.Sprintf("%d files that it has mapped", len(n.Mapped)))
	}
	return strings.Join(words, ", ")
}

func snapshotsCheckCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "check [DIR [NAME]]",
		Short: "Read all that snapshots have, and compare it with their hashes",
		Long: `Reads the blocks and files of one snapshot, or of all in DIR, past the page cache
where the disk allows that, and names each that is missing or wrong. Its exit
status is 1 if there is one.`,
		Example:           `  tms snapshots check /data/snapshots`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completeSnapshots,
		RunE: func(command *cobra.Command, arguments []string) error {
			d, name, err := findSnapshots(arguments)
			if err != nil {
				return err
			}
			result, err := checkSnapshots(command, d, name)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(command.OutOrStdout(), result)
			} else if len(result.Damage) == 0 {
				_, err = fmt.Fprintf(command.OutOrStdout(), "%s are as they were written (%.2f s)\n",
					readable.Bytes(uint64(result.Bytes)), result.Seconds)
			} else {
				for _, damage := range result.Damage {
					fmt.Fprintf(command.ErrOrStderr(), "tms: %s\n", readable.Printable(damage.Error()))
				}
			}
			if err == nil && len(result.Damage) > 0 {
				err = errNo
			}
			return err
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return command
}

func checkSnapshots(command *cobra.Command, d *snapshot.Directory, name string) (*snapshotCheck, error) {
	begin := time.Now()
	result := &snapshotCheck{Directory: d.Path(), Damage: []*snapshot.Damage{}}
	damage, read, err := d.Check(command.Context(), name)
	result.Damage, result.Bytes = append(result.Damage, damage...), read
	result.Seconds = time.Since(begin).Seconds()
	return result, err
}

func snapshotsPruneCommand() *cobra.Command {
	var asJSON bool
	var options snapshot.PruneOptions
	command := &cobra.Command{
		Use:   "prune [DIR]",
		Short: "Remove blocks that no snapshot names, and what was not completed",
		Long: `Removes blocks that no snapshot in DIR names, and what is left of a snapshot that
was not completed. To give a snapshot up, remove its folder first; --keep does
so for all but the newest. Nothing is removed while a snapshot is being made or
restored there.`,
		Example: `  tms snapshots prune /data/snapshots
  tms snapshots prune /data/snapshots --keep 3 --dry-run`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeSnapshots,
		RunE: func(command *cobra.Command, arguments []string) error {
			if command.Flags().Changed("keep") && options.Keep < 1 {
				return errors.New("--keep takes a number from 1 on")
			}
			d, name, err := findSnapshots(arguments)
			if err != nil {
				return err
			}
			if name != "" {
				return fmt.Errorf("%s is one snapshot: name its directory, %s", arguments[0], d.Path())
			}
			pruned, err := d.Prune(options)
			if errors.Is(err, snapshot.ErrInUse) {
				fmt.Fprintf(command.ErrOrStderr(), "tms: %v\n", err)
				return errNo
			}
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(command.OutOrStdout(), snapshotPrune{d.Path(), options.DryRun, pruned})
			}
			would := ""
			if options.DryRun {
				would = "would be "
			}
			for _, name := range append(pruned.Snapshots, pruned.Incomplete...) {
				fmt.Fprintf(command.OutOrStdout(), "%s: %sremoved\n", readable.Printable(name), would)
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "%s of blocks %sremoved\n",
				readable.Bytes(uint64(pruned.Bytes)), would)
			return err
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	command.Flags().IntVar(&options.Keep, "keep", 0, "remove all snapshots but this many of the newest")
	command.Flags().BoolVar(&options.DryRun, "dry-run", false, "only say what would be removed")
	return command
}
