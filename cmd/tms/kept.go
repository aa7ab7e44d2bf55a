package main

import (
	"encoding/json"
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
	var start, idle, report bool
	command := &cobra.Command{
		Use:   "keeper",
		Short: "Hold sets of device memory that no process owns",
		Long: `Holds the sets of tensors that programs publish (tms.kept in Python), until
Ctrl-C. It needs no GPU. Each user has one. The first program that publishes or
attaches a set starts it, and it then ends when it has had no set for a minute.
Run it yourself to choose where it lives, such as outside a container.

When it is killed, the next one asks the running programs for the sets that they
have mapped. Sets that no program has mapped then are lost.`,
		Example: `  tms keeper
  tms keeper --start        # in the background, unless one runs`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			if start {
				err := startKeeper()
				if report {
					text := ""
					if err != nil {
						text = err.Error()
					}
					fmt.Fprintf(command.OutOrStdout(), "%d 0\n%s", cuda.Code(err), text)
					return nil
				}
				return err
			}
			ctx, _ := interruptible()
			return keeper.New().Serve(ctx, idle, func(line string) {
				fmt.Fprintln(command.ErrOrStderr(), "tms:", line)
			})
		},
	}
	flags := command.Flags()
	flags.BoolVar(&start, "start", false, "start one in the background, unless one runs already")
	flags.BoolVar(&idle, "idle", false, "")
	flags.BoolVar(&report, "report", false, "") // for libtms.so: "CODE BYTES", and the error on the next line
	_ = flags.MarkHidden("idle")
	_ = flags.MarkHidden("report")
	return command
}

func startKeeper() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return keeper.Start(self, "keeper", "--idle")
}

// keptSet is a line of the list.
type keptSet struct {
	control.KeptSet
	Bytes   uint64 `json:"bytes"`
	Tensors *int   `json:"tensors"` // nil: its manifest is not of the Python package
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
			sets, err := keptSets()
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
				fmt.Fprintln(table, strings.Join(s.row(), "\t"))
			}
			return table.Flush()
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	command.AddCommand(keptDropCommand())
	return command
}

func (s *keptSet) row() []string {
	tensors, state, users := "-", "complete", []string{}
	if s.Tensors != nil {
		tensors = strconv.Itoa(*s.Tensors)
	}
	if s.Replaced {
		state = "replaced"
	} else if s.Sealed == 0 {
		state = "being made"
	}
	for _, pid := range s.Users {
		users = append(users, strconv.Itoa(pid))
	}
	return []string{readable.Printable(s.Name), readable.Bytes(s.Bytes), tensors,
		readable.Printable(s.Model) + " " + readable.Cut(readable.Printable(s.Device), 12), state,
		strings.Join(users, " ")}
}

func keptSets() ([]keptSet, error) {
	if err := startKeeper(); err != nil { // one that was killed is followed by another, which knows what is left
		return nil, err
	}
	reply, err := keeper.Ask(control.Request{Op: control.List})
	sets := []keptSet{}
	for _, s := range reply.Sets {
		listed := keptSet{KeptSet: s, Bytes: s.Bytes()}
		var manifest struct {
			Tensors map[string]json.RawMessage `json:"tensors"`
		}
		if text := keeper.Manifest(s); json.Unmarshal(text, &manifest) == nil && manifest.Tensors != nil {
			count := len(manifest.Tensors)
			listed.Tensors = &count
		}
		sets = append(sets, listed)
	}
	return sets, err
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
				reply, err := keeper.Ask(control.Request{Op: control.Drop, Name: name})
				switch {
				case err != nil:
					fmt.Fprintf(command.ErrOrStderr(), "tms: %s: %v\n", readable.Printable(name), err)
					failed = errNo
				case len(reply.Sets[0].Users) > 0:
					fmt.Fprintf(command.OutOrStdout(), "%s: dropped; %s are free when process %s no longer uses it\n",
						readable.Printable(name), readable.Bytes(reply.Sets[0].Bytes()),
						strings.Trim(fmt.Sprint(reply.Sets[0].Users), "[]"))
				default:
					fmt.Fprintf(command.OutOrStdout(), "%s: dropped, %s freed\n", readable.Printable(name),
						readable.Bytes(reply.Sets[0].Bytes()))
				}
			}
			return failed
		},
	}
}
