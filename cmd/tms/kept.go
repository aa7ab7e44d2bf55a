package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/sets"
	"tms/vmm/cuda"
)

func keeperCommand() *cobra.Command {
	var start, idle bool
	command := &cobra.Command{
		Use:    "keeper",
		Hidden: true,
		Short:  "Hold sets of device memory that no process owns",
		Long: `Holds the sets of tensors that programs publish (tms.kept in Python), until
Ctrl-C. It needs no GPU. Each user has one. The first program that publishes or
attaches a set starts it, and it then ends when it has had no set for a minute.
Run it yourself to choose where it lives, such as outside a container.

When it is killed, the next one asks the running programs for the sets that they
have attached. Sets that no program has attached then are lost.`,
		Example:           `  tms keeper`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			if !start {
				ctx, _ := interruptible()
				return sets.NewKeeper().Serve(ctx, idle, func(text string) { fmt.Fprintln(command.ErrOrStderr(), "tms:", text) })
			}
			return answerLibrary(command, startKeeper())
		},
	}
	flags := command.Flags()
	flags.BoolVar(&start, "start", false, "") // for libtms.so
	flags.BoolVar(&idle, "idle", false, "")   // for startKeeper
	_ = flags.MarkHidden("start")
	_ = flags.MarkHidden("idle")
	return command
}

// answerLibrary says "CODE 0", and an error on the next line.
func answerLibrary(command *cobra.Command, err error) error {
	fmt.Fprintf(command.OutOrStdout(), "%d 0\n", cuda.Code(err))
	if err != nil {
		fmt.Fprint(command.OutOrStdout(), err)
	}
	return nil
}

func startKeeper() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return sets.StartKeeper(self, "keeper", "--idle")
}

func keptCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "kept",
		Short: "List the sets of device memory that no process owns",
		Long: `Lists the sets that the keeper holds. BYTES is what a set takes on its device,
USERS are the processes that have it open. A set that was dropped or replaced by
a later one of its name is listed until its last user goes.`,
		Example: `  tms kept
  tms kept drop qwen3-8b`,
		Args:              commandsAlone,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			listed, err := askKeeper(control.SetRequest{Op: control.List})
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(command.OutOrStdout(), listed)
			}
			if len(listed) == 0 {
				fmt.Fprintln(command.ErrOrStderr(), "tms: the keeper holds no sets; see tms kept --help")
				return nil
			}
			table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "NAME\tVERSION\tBYTES\tTENSORS\tDEVICE\tSTATE\tUSERS")
			for _, s := range listed {
				fmt.Fprintln(table, rowOf(s))
			}
			return table.Flush()
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	command.AddCommand(keptDropCommand(), keptDemoteCommand(), keptPromoteCommand(), keptReserveCommand(), keptVerifyCommand(),
		keptAdvanceCommand())
	return command
}

func rowOf(s control.KeptSet) string {
	tensors, state, version := "-", "complete", "-"
	if s.Version > 0 {
		version = strconv.FormatUint(s.Version, 10)
	}
	if s.Tensors > 0 {
		tensors = strconv.Itoa(s.Tensors)
	}
	if s.Replaced {
		state = "replaced"
	} else if s.Sealed == 0 {
		state = "being made"
	} else if s.Place != sets.Device {
		state = places[s.Place]
	}
	return strings.Join([]string{readable.Printable(s.Name), version, readable.Bytes(s.Bytes), tensors,
		strings.TrimPrefix(fleet.GPUName(readable.Printable(s.Device)), "GPU "), state, numbers(s.Users)}, "\t")
}

func numbers(pids []int) string { return strings.Trim(fmt.Sprint(pids), "[]") }

// askKeeper starts a keeper first, unless one runs: one that follows a killed keeper knows what is left.
func askKeeper(r control.SetRequest) ([]control.KeptSet, error) {
	if err := startKeeper(); err != nil {
		return nil, err
	}
	reply, _, err := sets.Ask(r, -1)
	fleet.NumberSets(reply.Sets)
	return append([]control.KeptSet{}, reply.Sets...), err // for JSON, none is an empty list
}

func completeSets(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	reply, _, _ := sets.Ask(control.SetRequest{Op: control.List}, -1)
	for _, s := range reply.Sets {
		names = append(names, s.Name)
	}
	return completable(names), cobra.ShellCompDirectiveNoFileComp
}

func keptDropCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drop NAME...",
		Short: "Take away a set's name; its memory goes with its last user",
		Long: `Takes away the names of sets, so that no process can attach them any more.
The memory of a set is free when no process has it open.`,
		Example:           `  tms kept drop qwen3-8b`,
		ValidArgsFunction: completeSets,
		RunE: func(command *cobra.Command, arguments []string) error {
			return eachSet(command, arguments, func(name string) (string, error) {
				dropped, err := askKeeper(control.SetRequest{Op: control.Drop, Name: name})
				if err != nil {
					return "", err
				}
				if users := dropped[0].Users; len(users) > 0 {
					return fmt.Sprintf("dropped; %s are free when process %s no longer uses it",
						readable.Bytes(dropped[0].Bytes), numbers(users)), nil
				}
				return fmt.Sprintf("dropped, %s freed", readable.Bytes(dropped[0].Bytes)), nil
			})
		},
	}
}

// eachSet does something with each set that is named, and says what, unless there are no words.
func eachSet(command *cobra.Command, names []string, do func(name string) (string, error)) (failed error) {
	if len(names) == 0 {
		return errors.New("name the sets (tms kept lists them)")
	}
	if slices.Contains(names, "") { // a script's variable without a value
		return errors.New("a name is empty: name the sets (tms kept lists them)")
	}
	for _, name := range names {
		words, err := do(name)
		if err == nil && words != "" {
			fmt.Fprintf(command.OutOrStdout(), "%s: %s\n", readable.Printable(name), words)
		} else if err != nil {
			fmt.Fprintf(command.ErrOrStderr(), "tms: %s: %v\n", readable.Printable(name), err)
			failed = errNo
		}
	}
	return failed
}
