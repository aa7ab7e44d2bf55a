// Package replay repeats a recorded program's allocations on a pool, and reports the cost: time, memory and
// fragmentation.
package replay

import (
	"fmt"
	"io"
	"strings"

	"tms/internal/aid/readable"
	"tms/internal/report/trace"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

// Options describe the pool of a replay.
type Options struct {
	Kind     string
	Settings []string // of the pool, each k=v
	Limit    uint64   // the most bytes that the pool may hold, or 0 for no limit
}

// Result is the outcome of a trace. Sizes are in bytes.
type Result struct {
	Trace    string `json:"trace"`
	Settings string `json:"options"`

	Operations int     `json:"operations"`
	First      float64 `json:"ns_per_op"`       // on an empty pool, with the source's time
	Again      float64 `json:"ns_per_op_again"` // on the same pool once more

	// The pool's own statistics at the end of the trace.
	pool.Stats
	SourceCalls  int `json:"source_calls"`
	FreeFailures int `json:"free_failures"`

	ReservedPerLive float64 `json:"reserved_per_live"`      // the peak of one by the peak of the other
	Internal        float64 `json:"internal_fragmentation"` // the part of live not asked for, at the peak of live
	External        float64 `json:"external_fragmentation"` // the part of reserved not live, at the peak of reserved
	Metadata        uint64  `json:"metadata_bytes"`         // of host memory, at the peak of live
}

// Check returns an error if no pool can be made with the options. Errors: pool.ErrOption.
func Check(o Options) error {
	_, err := o.pool(newMeter(o.Limit).source())
	return err
}

func (o Options) pool(source pool.Source) (pool.Pool, error) {
	settings, err := pool.ParseOptions(strings.Join(o.Settings, ","))
	if err != nil {
		return nil, err
	}
	return kinds.New(o.Kind, source, settings)
}

// Run replays a trace over bare addresses: once to look at every operation, then several times for the time, then once
// up to its peak for the size of the metadata. It frees blocks that the trace leaves live. An operation that the pool
// refuses is part of the result. Errors: pool.ErrOption.
func Run(t *trace.Trace, o Options) (*Result, error) {
	result := &Result{Trace: t.Name, Settings: strings.Join(o.Settings, ","), Operations: len(t.Events)}
	peak, err := observe(t, o, result)
	if err == nil {
		err = measureTime(t, o, result)
	}
	if err == nil {
		result.Metadata, err = measureMetadata(t, o, peak)
	}
	return result, err
}

// WriteTable writes a line for each result of one trace. docs/cli.md explains the columns.
func WriteTable(to io.Writer, results []*Result) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%-8s  %10s  %6s  %6s  %11s  %13s  %13s  %8s  %8s  %12s  %8s\n", "pool", "operations", "ns/op",
		"again", "peak live", "peak reserved", "reserved/live", "internal", "external", "source calls", "failures")
	for _, r := range results {
		fmt.Fprintf(&text, "%-8s  %10d  %6.0f  %6.0f  %11s  %13s  %13.3f  %7.1f%%  %7.1f%%  %12d  %8d\n",
			r.Kind, r.Operations, r.First, r.Again, readable.Bytes(r.PeakLive), readable.Bytes(r.PeakReserved),
			r.ReservedPerLive, 100*r.Internal, 100*r.External, r.SourceCalls, r.Failures+uint64(r.FreeFailures))
	}
	_, err := io.WriteString(to, text.String())
	return err
}
