package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tms/internal/recording/replay"
	"tms/internal/recording/trace"
	"tms/vmm/pool/kinds"
)

type replayFlags struct {
	kind     string
	settings []string
	source   string
	memory   string
	events   bool
	asJSON   bool
	snapshot string
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
  tms replay --pool caching --snapshot train.pickle train.csv
  tms replay --pool bfc --option garbage_collection=true train.csv`,
		RunE: func(command *cobra.Command, paths []string) error { return f.run(command.OutOrStdout(), paths) },
	}
	flags := command.Flags()
	flags.StringVar(&f.kind, "pool", "", "`KIND` of pool, or all")
	completes(command, "pool", append(kinds.Names(), "all")...)
	flags.StringArrayVar(&f.settings, "option", nil, "option of the pool, `NAME=VALUE` (may be repeated)")
	flags.StringVar(&f.source, "source", "sim", "`SOURCE` of segments: sim, cuda or vmm")
	completes(command, "source", "sim", "cuda", "vmm")
	flags.StringVar(&f.memory, "memory", "", "`BYTES` of segments at most, such as 40GiB")
	completes(command, "option")
	completes(command, "memory")
	flags.BoolVar(&f.events, "events", false, "print one JSON line for each operation")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON line for each result")
	flags.StringVar(&f.snapshot, "snapshot", "", "write one pool to `FILE` for pytorch.org/memory_viz")
	return command
}

func (f *replayFlags) run(stdout io.Writer, paths []string) error {
	if len(paths) == 0 {
		return errors.New("give a trace; see tms replay --help")
	}
	selected, place, err := f.read()
	if err != nil {
		return err
	}
	if f.snapshot != "" && (len(selected) > 1 || len(paths) > 1) {
		return errors.New("--snapshot takes one pool and one trace: name one with --pool, and give one trace")
	}
	var traces []*trace.Trace
	for _, path := range paths {
		t, err := trace.ReadFile(path)
		if err != nil {
			return err
		}
		traces = append(traces, t)
	}
	out := bufio.NewWriter(stdout)
	lines := json.NewEncoder(out)
	var result *replay.Result
	for i, t := range traces {
		var results []*replay.Result
		for _, kind := range selected {
			o := replay.Options{Kind: kind, Settings: f.settings, Place: place, Snapshot: f.snapshot != ""}
			if f.events {
				o.Each = func(e replay.Event) error { return lines.Encode(e) }
			}
			if result, err = replay.Run(t, o); err != nil {
				return errors.Join(fmt.Errorf("%s on %s: %w", t.Name, kind, err), out.Flush())
			}
			if f.events || f.asJSON {
				if err := errors.Join(lines.Encode(result), out.Flush()); err != nil {
					return err
				}
				continue
			}
			results = append(results, result)
		}
		if len(results) > 0 {
			if i > 0 {
				fmt.Fprintln(out)
			}
			fmt.Fprintln(out, t.Name)
			if err := errors.Join(replay.WriteTable(out, results), out.Flush()); err != nil {
				return err
			}
		}
	}
	if f.snapshot != "" {
		return writeFile(f.snapshot, result.Snapshot.Write)
	}
	return nil
}

// read checks the flags.
func (f *replayFlags) read() (selected []string, place *replay.Place, err error) {
	selected = []string{f.kind}
	switch {
	case f.kind == "":
		return nil, nil, fmt.Errorf("give --pool KIND, one of %s, or all", strings.Join(kinds.Names(), ", "))
	case f.kind == "all" && len(f.settings) > 0:
		return nil, nil, errors.New("--option needs one kind of pool: name it with --pool")
	case f.kind == "all":
		selected = kinds.Names()
	}
	var limit uint64
	if f.memory != "" {
		if limit, err = sizeOf("--memory", f.memory); err != nil {
			return nil, nil, err
		}
	}
	if place, err = replay.NewPlace(f.source, limit); err != nil {
		return nil, nil, err
	}
	return selected, place, replay.Check(replay.Options{Kind: selected[0], Settings: f.settings, Place: place})
}
