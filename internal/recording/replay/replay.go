// Package replay does with a pool what a recorded program did with its allocator, and says what that cost:
// time, memory and fragmentation.
//
//	replay.go    what is asked for, and what came of it
//	place.go     where segments come from, and how many
//	observe.go   once through the trace, looking at every operation
//	measure.go   many times through it, for the time; once for the size of the metadata
//	snapshot.go  a pool's history as PyTorch's: pickle.go
package replay

import (
	"fmt"
	"io"
	"strings"

	"tms/internal/readable"
	"tms/internal/recording/trace"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

// Options say what a trace is replayed on.
type Options struct {
	Kind     string
	Settings []string // of the pool, each k=v
	Place    *Place
	Each     func(Event) error // called for each operation; nil: for none
	Snapshot bool              // Result.Snapshot is wanted
	quiet    bool              // the pool's failures have been told
}

// Result is what came of a trace. Sizes are in bytes.
type Result struct {
	Trace    string `json:"trace"`
	Settings string `json:"options"`
	Source   string `json:"source"`

	Operations int     `json:"operations"`
	First      float64 `json:"ns_per_op"`       // from an empty pool on, the source's time included
	Again      float64 `json:"ns_per_op_again"` // once more on the pool that has been through it

	// The pool's own statistics at the end of the trace.
	pool.Stats
	SourceCalls  int `json:"source_calls"`
	FreeFailures int `json:"free_failures"`

	ReservedPerLive float64 `json:"reserved_per_live"`      // peak by peak
	Internal        float64 `json:"internal_fragmentation"` // of live, what was not asked for, at the peak of live
	External        float64 `json:"external_fragmentation"` // of reserved, what was not live, at the peak of reserved
	Metadata        uint64  `json:"metadata_bytes"`         // of host memory, at the peak of live

	Snapshot *Snapshot `json:"-"`
}

// Check says whether a pool can be made like that. Errors: pool.ErrOption, the place's.
func Check(o Options) error {
	return o.Place.visit(func() error {
		_, err := o.pool(o.Place.fresh().source())
		return err
	})
}

func (o Options) pool(source pool.Source) (pool.Pool, error) {
	settings, err := pool.ParseOptions(strings.Join(o.Settings, ","))
	if err != nil {
		return nil, err
	}
	if o.quiet {
		settings.Text("dump_log_on_failure", "")
	}
	return kinds.New(o.Kind, source, settings)
}

// Run replays a trace: once with a look at every operation, then several times for the time, then once up
// to its peak for the size of the metadata. Blocks that the trace leaves live are freed after it. That the
// pool refuses an operation is part of the result.
// Errors: pool.ErrOption, what Each returns, the place's.
func Run(t *trace.Trace, o Options) (*Result, error) {
	result := &Result{
		Trace: t.Name, Settings: strings.Join(o.Settings, ","), Source: o.Place.name, Operations: len(t.Events),
	}
	err := o.Place.visit(func() error {
		peak, err := observe(t, o, result)
		if err != nil {
			return err
		}
		o.quiet = true
		if err := measureTime(t, o, result); err != nil {
			return err
		}
		result.Metadata, err = measureMetadata(t, o, peak)
		return err
	})
	return result, err
}

// WriteTable writes a line for each result, all of one trace. docs/cli.md has what the columns mean.
func WriteTable(to io.Writer, results []*Result) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%-8s  %10s  %6s  %6s  %11s  %13s  %13s  %8s  %8s  %12s  %8s\n", "pool", "operations", "ns/op", "again",
		"peak live", "peak reserved", "reserved/live", "internal", "external", "source calls", "failures")
	for _, r := range results {
		fmt.Fprintf(&text, "%-8s  %10d  %6.0f  %6.0f  %11s  %13s  %13.3f  %7.1f%%  %7.1f%%  %12d  %8d\n",
			r.Kind, r.Operations, r.First, r.Again, readable.Bytes(r.PeakLive), readable.Bytes(r.PeakReserved),
			r.ReservedPerLive, 100*r.Internal, 100*r.External, r.SourceCalls, r.Failures+uint64(r.FreeFailures))
	}
	_, err := io.WriteString(to, text.String())
	return err
}
