package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tms/internal/control"
	"tms/internal/keeper"
	"tms/internal/readable"
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
have mapped. Sets that no program has mapped then are lost.`,
		Example:           `  tms keeper`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			if !start {
				ctx, _ := interruptible()
				return keeper.New().Serve(ctx, idle)
			}
			err := startKeeper()
			fmt.Fprintf(command.OutOrStdout(), "%d 0\n", cuda.Code(err))
			if err != nil {
				fmt.Fprint(command.OutOrStdout(), err)
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.BoolVar(&start, "start", false, "") // for libtms.so: says "CODE 0", and the error on the next line
	flags.BoolVar(&idle, "idle", false, "")   // for startKeeper
	_ = flags.MarkHidden("start")
	_ = flags.MarkHidden("idle")
	return command
}

func startKeeper() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return keeper.Start(self, "keeper", "--idle")
}

func keptCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "kept",
		Short: "List the sets of device memory that no process owns",
		Long: `Lists the sets that the keeper holds. BYTES is the device memory of a whole set,
USERS are the processes that have it open. A set that was dropped or replaced by
a later one of its name is listed until its last user goes.`,
		Example: `  tms kept
  tms kept drop qwen3-8b`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			sets, err := askKeeper(control.Request{Op: control.List})
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(command.OutOrStdout(), sets)
			}
			if len(sets) == 0 {
				fmt.Fprintln(command.ErrOrStderr(), "tms: the keeper holds no sets; see tms kept --help")
				return nil
			}
			table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "NAME\tBYTES\tTENSORS\tDEVICE\tSTATE\tUSERS")
			for _, s := range sets {
				fmt.Fprintln(table, rowOf(s))
			}
			return table.Flush()
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	command.AddCommand(keptDropCommand())
	return command
}

func rowOf(s control.KeptSet) string {
	tensors, state := "-", "complete"
	if s.Tensors > 0 {
		tensors = strconv.Itoa(s.Tensors)
	}
	if s.Replaced {
		state = "replaced"
	} else if s.Sealed == 0 {
		state = "being made"
	}
	return strings.Join([]string{readable.Printable(s.Name), readable.Bytes(s.Bytes), tensors,
		readable.Cut(readable.Printable(s.Device), 12), state, numbers(s.Users)}, "\t")
}

func numbers(pids []int) string { return strings.Trim(fmt.Sprint(pids), "[]") }

// askKeeper starts a keeper first, unless one runs: one that follows a killed keeper knows what is left.
func askKeeper(r control.Request) ([]control.KeptSet, error) {
	if err := startKeeper(); err != nil {
		return nil, err
	}
	reply, err := keeper.Ask(r)
	return append([]control.KeptSet{}, reply.Sets...), err // for JSON, none is an empty list
}

func keptDropCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drop NAME...",
		Short: "Take away a set's name; its memory goes with its last user",
		Long: `Takes away the names of sets, so that no process can attach them any more.
The memory of a set is free when no process has it open.`,
		Example: `  tms kept drop qwen3-8b`,
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			reply, _ := keeper.Ask(control.Request{Op: control.List})
			for _, s := range reply.Sets {
				names = append(names, s.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) == 0 {
				return errors.New("name the sets (tms kept lists them)")
			}
			var failed error
			for _, name := range arguments {
				sets, err := askKeeper(control.Request{Op: control.Drop, Name: name})
				if err != nil {
					fmt.Fprintf(command.ErrOrStderr(), "tms: %s: %v\n", readable.Printable(name), err)
					failed = errNo
					continue
				}
				words := "dropped, %s freed"
				if users := sets[0].Users; len(users) > 0 {
					words = "dropped; %s are free when process " + numbers(users) + " no longer uses it"
				}
				fmt.Fprintf(command.OutOrStdout(), "%s: "+words+"\n", readable.Printable(name),
					readable.Bytes(sets[0].Bytes))
			}
			return failed
		},
	}
}
