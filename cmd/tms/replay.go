package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tms/internal/report/replay"
	"tms/internal/report/trace"
	"tms/vmm/pool/kinds"
)

type replayFlags struct {
	kind     string
	settings []string
	memory   string
	asJSON   bool
	places   bool
}

func replayCommand() *cobra.Command {
	var f replayFlags
	command := &cobra.Command{
		Use:   "replay --pool KIND TRACE...",
		Short: "Replay recorded allocations on a memory pool",
		Long: `Replays recorded allocations on a memory pool, and measures what the pool costs.
KIND is a kind of pool (docs/pools.md), or all to compare them.`,
		Example: `  tms replay --pool caching train.csv
  tms replay --pool all train.trace serve.csv.gz
  tms replay --pool bfc --option garbage_collection=true train.csv`,
		RunE: func(command *cobra.Command, paths []string) error { return f.run(command.OutOrStdout(), paths) },
	}
	flags := command.Flags()
	flags.StringVar(&f.kind, "pool", "", "`KIND` of pool, or all")
	completes(command, "pool", append(kinds.Names(), "all")...)
	flags.StringArrayVar(&f.settings, "option", nil, "option of the pool, `NAME=VALUE` (may be repeated)")
	flags.StringVar(&f.memory, "memory", "", "`BYTES` of segments at most, such as 40GiB")
	completes(command, "option")
	completes(command, "memory")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON line for each result")
	flags.BoolVar(&f.places, "placements", false, "print where each block lay, as JSON lines")
	return command
}

func (f *replayFlags) run(stdout io.Writer, paths []string) error {
	switch {
	case len(paths) == 0:
		return errors.New("give a trace; see tms replay --help")
	case f.asJSON && f.places:
		return errors.New("--placements prints JSON already: leave --json out")
	}
	selected, limit, err := f.read()
	if err != nil {
		return err
	}
	var traces []*trace.Trace
	for _, path := range paths {
		t, err := trace.ReadFile(path)
		if err != nil {
			return err
		}
		traces = append(traces, t)
	}
	if f.places {
		return f.place(stdout, traces, selected, limit)
	}
	for i, t := range traces {
		var results []*replay.Result
		for _, kind := range selected {
			result, err := replay.Run(t, replay.Options{Kind: kind, Settings: f.settings, Limit: limit})
			if err != nil {
				return fmt.Errorf("%s on %s: %w", t.Name, kind, err)
			}
			if f.asJSON {
				if err := writeJSON(stdout, result); err != nil {
					return err
				}
			}
			results = append(results, result)
		}
		if f.asJSON {
			continue
		}
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		fmt.Fprintln(stdout, t.Name)
		if err := replay.WriteTable(stdout, results); err != nil {
			return err
		}
	}
	return nil
}

// place writes the segments and blocks of each kind, for a drawing.
func (f *replayFlags) place(stdout io.Writer, traces []*trace.Trace, selected []string, limit uint64) error {
	to := bufio.NewWriter(stdout)
	for _, t := range traces {
		for _, kind := range selected {
			err := replay.Place(t, replay.Options{Kind: kind, Settings: f.settings, Limit: limit},
				func(placed any) error { return writeJSON(to, placed) })
			if err != nil {
				return fmt.Errorf("%s on %s: %w", t.Name, kind, err)
			}
		}
	}
	return to.Flush()
}

// read checks the flags.
func (f *replayFlags) read() (selected []string, limit uint64, err error) {
	selected = []string{f.kind}
	switch {
	case f.kind == "":
		return nil, 0, fmt.Errorf("give --pool KIND, one of %s, or all", strings.Join(kinds.Names(), ", "))
	case f.kind == "all" && len(f.settings) > 0:
		return nil, 0, errors.New("--option needs one kind of pool: name it with --pool")
	case f.kind == "all":
		selected = kinds.Names()
	}
	if f.memory != "" {
		if limit, err = sizeOf("--memory", f.memory); err != nil {
			return nil, 0, err
		}
	}
	return selected, limit, replay.Check(replay.Options{Kind: selected[0], Settings: f.settings, Limit: limit})
}
