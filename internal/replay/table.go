package replay

import (
	"fmt"
	"io"
	"strings"
)

var columns = []struct {
	title string
	text  func(*Result) string
}{
	{"pool", func(r *Result) string { return r.Kind }},
	{"operations", func(r *Result) string { return fmt.Sprint(r.Operations) }},
	{"ns/op", func(r *Result) string { return fmt.Sprintf("%.0f", r.First) }},
	{"again", func(r *Result) string { return fmt.Sprintf("%.0f", r.Again) }},
	{"peak live", func(r *Result) string { return size(r.PeakLive) }},
	{"peak reserved", func(r *Result) string { return size(r.PeakReserved) }},
	{"reserved/live", func(r *Result) string { return fmt.Sprintf("%.3f", r.ReservedPerLive) }},
	{"internal", func(r *Result) string { return fmt.Sprintf("%.1f%%", 100*r.Internal) }},
	{"external", func(r *Result) string { return fmt.Sprintf("%.1f%%", 100*r.External) }},
	{"source calls", func(r *Result) string { return fmt.Sprint(r.SourceCalls) }},
	{"failures", func(r *Result) string { return fmt.Sprint(r.Failures + uint64(r.FreeFailures)) }},
}

// WriteTable writes a line for each result, all of one trace.
func WriteTable(to io.Writer, results []*Result) error {
	lines := make([]strings.Builder, 1+len(results))
	for i, c := range columns {
		cells := []string{c.title}
		for _, r := range results {
			cells = append(cells, c.text(r))
		}
		width := 0
		for _, cell := range cells {
			width = max(width, len(cell))
		}
		for line, cell := range cells {
			if i == 0 {
				fmt.Fprintf(&lines[line], "%-*s", width, cell)
			} else {
				fmt.Fprintf(&lines[line], "  %*s", width, cell)
			}
		}
	}
	for i := range lines {
		if _, err := fmt.Fprintln(to, lines[i].String()); err != nil {
			return err
		}
	}
	return nil
}

func size(bytes uint64) string {
	value, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	unit := 0
	for ; value >= 1024; unit++ {
		value /= 1024
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.2f %s", value, units[unit])
}
