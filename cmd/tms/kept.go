package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
			ctx, _ := interruptible()
			if !start {
				return keeper.New().Serve(ctx, idle, func(line string) {
					fmt.Fprintln(command.ErrOrStderr(), "tms:", line)
				})
			}
			err := startKeeper()
			if !report {
				return err
			}
			words := ""
			if err != nil {
				words = err.Error()
			}
			fmt.Fprintf(command.OutOrStdout(), "%d 0\n%s", cuda.Code(err), words)
			return nil
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
	tensors, state := "-", "complete"
	if s.Tensors != nil {
		tensors = strconv.Itoa(*s.Tensors)
	}
	if s.Replaced {
		state = "replaced"
	} else if s.Sealed == 0 {
		state = "being made"
	}
	return []string{readable.Printable(s.Name), readable.Bytes(s.Bytes), tensors,
		readable.Cut(readable.Printable(s.Device), 12), state,
		strings.Trim(fmt.Sprint(s.Users), "[]")}
}

func keptSets() ([]keptSet, error) {
	if err := startKeeper(); err != nil { // one that was killed is followed by another, which knows what is left
		return nil, err
	}
	reply, _, err := keeper.Ask(control.Request{Op: control.List})
	sets := []keptSet{}
	for _, s := range reply.Sets {
		sets = append(sets, keptSet{KeptSet: s, Bytes: s.Bytes(), Tensors: tensorsOf(s)})
	}
	return sets, err
}

// tensorsOf counts the tensors of a set; nil: its manifest is not of the Python package, or cannot be read.
func tensorsOf(s control.KeptSet) *int {
	if s.Sealed == 0 || s.Replaced {
		return nil
	}
	reply, file, err := keeper.Ask(control.Request{Op: control.Open, Name: s.Name})
	if err != nil || file == nil {
		return nil
	}
	defer func() { _, _, _ = keeper.Ask(control.Request{Op: control.Close, Set: reply.Sets[0].ID}) }()
	defer func() { _ = file.Close() }()
	var manifest struct {
		Tensors map[string]json.RawMessage `json:"tensors"`
	}
	text := io.NewSectionReader(file, 0, 1<<40) // all that have the file share its position
	if json.NewDecoder(text).Decode(&manifest) != nil || manifest.Tensors == nil {
		return nil
	}
	count := len(manifest.Tensors)
	return &count
}

func keptDropCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drop NAME...",
		Short: "Take away a set's name; its memory goes with its last user",
		Long: `Takes away the names of sets, so that no process can attach them any more.
The memory of a set is free when no process has it open.`,
		Example: `  tms kept drop qwen3-8b`,
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			reply, _, _ := keeper.Ask(control.Request{Op: control.List})
			for _, s := range reply.Sets {
				names = append(names, s.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) == 0 {
				return errors.New("name the sets (tms kept lists them)")
			}
			failed := startKeeper()
			if failed != nil {
				return failed
			}
			for _, name := range arguments {
				reply, _, err := keeper.Ask(control.Request{Op: control.Drop, Name: name})
				if err != nil {
					fmt.Fprintf(command.ErrOrStderr(), "tms: %s: %v\n", readable.Printable(name), err)
					failed = errNo
					continue
				}
				dropped := reply.Sets[0]
				words := "dropped, %s freed"
				if len(dropped.Users) > 0 {
					words = "dropped; %s are free when process " + strings.Trim(fmt.Sprint(dropped.Users), "[]") +
						" no longer uses it"
				}
				fmt.Fprintf(command.OutOrStdout(), "%s: "+words+"\n", readable.Printable(name),
					readable.Bytes(dropped.Bytes()))
			}
			return failed
		},
	}
}
