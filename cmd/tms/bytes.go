package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/machine/nvml"
	"tms/vmm/stats"
)

// writeBytes writes the table of each process on each device. unavailable: why NVML could not be asked, or nil.
func writeBytes(text *page, found []fleet.Process, unavailable error) {
	for i, p := range found {
		if i > 0 {
			text.WriteString("\n")
		}
		text.line(fmt.Sprintf("%d %s", p.PID, cmp.Or(readable.Printable(p.Error), p.Title())))
		for _, d := range p.Bytes {
			writeDevice(text, p, d)
		}
	}
	if unavailable != nil {
		words := "NVML has no figure of some devices: " + unavailable.Error()
		if errors.Is(unavailable, nvml.ErrUnavailable) {
			words = unavailable.Error() + "; so what a process has in all is not known"
		}
		fmt.Fprintln(text, words)
	}
}

func writeDevice(to *page, p fleet.Process, d fleet.DeviceBytes) {
	var names []string
	if d.GPU != nil {
		names = append(names, fmt.Sprint("GPU ", *d.GPU))
	}
	if d.Name != "" {
		names = append(names, d.Name)
	}
	if d.Device >= 0 {
		names = append(names, fmt.Sprint("device ", d.Device))
	}
	to.line("  " + strings.Join(names, ", ") + ": " + map[string]string{
		fleet.FromNVML:   readable.Short(d.UsedBytes) + " by NVML",
		fleet.FromAlone:  readable.Short(d.UsedBytes) + " by NVML, of the only process there",
		fleet.FromDevice: readable.Short(d.UsedBytes) + " used of it, on which NVML shows no process",
		fleet.Unmeasured: "NVML has no figure for the process",
	}[d.Source])
	if d.UUID != "" {
		to.line("    " + readable.Printable(d.UUID))
	}
	rest := "context, modules and other"
	if p.Account == nil {
		rest = "what is not pausable"
	}
	width := len(rest)
	for _, part := range d.Parts {
		width = max(width, min(utf8.RuneCountInString(titleOf(part)), 40))
	}
	row := func(name string, bytes uint64, details string) {
		share := "-"
		if d.UsedBytes > 0 {
			share = fmt.Sprintf("%.1f%%", 100*float64(bytes)/float64(d.UsedBytes))
		}
		to.line(fmt.Sprintf("    %-*s %8s %6s  %s", width, readable.Cut(name, width), readable.Short(bytes), share,
			details))
	}
	for _, part := range d.Parts {
		row(titleOf(part), part.Bytes, countOf(part))
		if part.Tag != nil {
			if details := detailsOf(*part.Tag); details != "" {
				to.line("        " + details)
			}
		}
	}
	if d.Source != fleet.Unmeasured {
		row(rest, d.RestBytes, "the difference")
		fmt.Fprintf(to, "    %.1f%% of %s is named by an allocation\n",
			100*float64(d.NamedBytes)/float64(max(d.UsedBytes, 1)), readable.Short(d.UsedBytes))
	}
	switch {
	case p.Account == nil:
		to.line("    libraries are not counted: tms run --account starts a program so that they are")
	case p.Account.Uncounted > 0:
		to.line(fmt.Sprintf("    %d allocations are not counted: there are too many", p.Account.Uncounted))
	}
}

// titleOf returns the name of a part, with the kind of memory where the name alone does not show it.
func titleOf(p fleet.Part) string {
	switch name := readable.Printable(p.Name); p.Kind {
	case fleet.KindTag:
		return "tag " + name
	case control.Pool:
		return strings.TrimSpace(name + " memory pool")
	case control.Graphs:
		return "allocations of graphs"
	default:
		return name
	}
}

func countOf(p fleet.Part) string {
	switch {
	case p.Kind != control.Allocations:
		return ""
	case p.Count == 1:
		return "1 allocation"
	}
	return fmt.Sprintf("%d allocations", p.Count)
}

func detailsOf(tag stats.Tag) string {
	var words []string
	for _, w := range []struct {
		what  string
		bytes uint64
	}{{"live", tag.LiveBytes}, {"paused", tag.PausedBytes}, {"slack", tag.SlackBytes}, {"on host", tag.HostBytes},
		{"on disk", tag.DiskBytes}, {"on peers", tag.PeerBytes()},
		{"without contents", tag.WithoutContents + tag.PauseWithoutContents}} {
		if w.bytes > 0 {
			words = append(words, w.what+" "+readable.Short(w.bytes))
		}
	}
	return strings.Join(words, ", ")
}
