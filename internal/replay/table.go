package replay

import (
	"fmt"
	"io"
	"strings"
)

var columns = []struct {
	title string
	text  func(*Result) string
	means string // "": the title says it
}{
	{"pool", func(r *Result) string { return r.Kind }, ""},
	{"operations", func(r *Result) string { return fmt.Sprint(r.Operations) }, ""},
	{"ns/op", func(r *Result) string { return fmt.Sprintf("%.0f", r.First) },
		"nanoseconds per operation from an empty pool on, with the time of the source: the\n" +
			"fastest of the passes of 200 ms, in which nothing is reported"},
	{"again", func(r *Result) string { return fmt.Sprintf("%.0f", r.Again) },
		"the same for a pool that has been through the trace before"},
	{"peak live", func(r *Result) string { return size(r.PeakLive) },
		"the most bytes in blocks, as the pool set them aside"},
	{"peak reserved", func(r *Result) string { return size(r.PeakReserved) },
		"the most bytes held from the source"},
	{"reserved/live", func(r *Result) string { return fmt.Sprintf("%.3f", r.ReservedPerLive) },
		"the one over the other"},
	{"internal", func(r *Result) string { return fmt.Sprintf("%.1f%%", 100*r.Internal) },
		"(live - requested) / live at the peak of live: what blocks have beyond what was asked for"},
	{"external", func(r *Result) string { return fmt.Sprintf("%.1f%%", 100*r.External) },
		"(reserved - live) / reserved at the peak of reserved; where that lasts, at the\n" +
			"operation there with most live: what is held, but in no block"},
	{"source calls", func(r *Result) string { return fmt.Sprint(r.SourceCalls) },
		"to allocate and free segments"},
	{"failures", func(r *Result) string { return fmt.Sprint(r.Failures + uint64(r.FreeFailures)) },
		"operations that the pool refused"},
}

// Legend says what the columns of a table are, a line or two for each.
func Legend() string {
	var text strings.Builder
	for _, c := range columns {
		if c.means != "" {
			fmt.Fprintf(&text, "  %-13s  %s\n", c.title, strings.ReplaceAll(c.means, "\n", "\n"+strings.Repeat(" ", 17)))
		}
	}
	return text.String()
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
