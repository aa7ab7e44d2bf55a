package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"tms/internal/control"
	"tms/internal/nvml"
	"tms/internal/readable"
	"tms/vmm/stats"
)

// deviceBytes is what one process has on one device, by name.
type deviceBytes struct {
	Device int    `json:"device"` // the process's number of it, or -1 if the process has not named it
	UUID   string `json:"uuid"`
	Name   string `json:"name"` // the GPU's, or "" if NVML does not show it
	// UsedBytes is everything that the process has there, according to Source; 0 without one.
	UsedBytes uint64 `json:"used_bytes"`
	Source    string `json:"source"` // one of the below
	// Parts is what was allocated, by whom, and NamedBytes is the sum. RestBytes is the part of UsedBytes in none of
	// them: contexts, modules, local memory, and what was not counted.
	Parts      []part `json:"parts"`
	NamedBytes uint64 `json:"named_bytes"`
	RestBytes  uint64 `json:"rest_bytes"`
}

// Where UsedBytes is from.
const (
	fromNVML   = "nvml"   // its figure for the process
	fromAlone  = "alone"  // its figure for the only process there, which it knows under another number
	fromDevice = "device" // the device's used bytes, where it shows no process and tms knows only this one
	fromNobody = ""       // there is none
)

// The kinds of parts besides control's.
const (
	kindTag   = "tag"
	kindPools = "pools"
	kindPeers = "peer backup"
)

// part has a name. Sizes are of device memory.
type part struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Bytes   uint64 `json:"bytes"`
	Count   uint64 `json:"count,omitempty"` // of allocations or pools
	details string // a line of its own
}

// partsOf returns what a process says that it has, by device.
func partsOf(state control.ProcessState) (found []deviceBytes) {
	at := func(device int, uuid string) *deviceBytes {
		i := slices.IndexFunc(found, func(d deviceBytes) bool { return d.Device == device })
		if i < 0 {
			i = len(found)
			found = append(found, deviceBytes{Device: device, Parts: []part{}})
		}
		found[i].UUID = cmp.Or(found[i].UUID, uuid)
		return &found[i]
	}
	for _, d := range state.Devices {
		at(d.Device, d.UUID)
	}
	for _, d := range state.Stats.Devices {
		on := at(d.Device, d.UUID)
		for _, tag := range d.Tags {
			on.add(part{Name: tag.Tag, Kind: kindTag, Bytes: tag.PhysicalBytes, details: detailsOf(tag)})
		}
		if d.PoolBytes > 0 {
			on.add(part{Name: "pools over cudaMalloc", Kind: kindPools, Bytes: d.PoolBytes})
		}
		if d.BackupBytes > 0 {
			on.add(part{Name: "contents of other devices", Kind: kindPeers, Bytes: d.BackupBytes})
		}
	}
	if state.Account != nil {
		for _, o := range state.Account.Others {
			on := at(o.Device, "")
			on.add(part{Name: o.Library, Kind: o.Kind, Bytes: o.Bytes, Count: o.Count})
		}
	}
	for i := range found {
		slices.SortStableFunc(found[i].Parts, func(x, y part) int { return cmp.Compare(y.Bytes, x.Bytes) })
	}
	slices.SortFunc(found, func(x, y deviceBytes) int { return cmp.Compare(x.Device, y.Device) })
	return found
}

func (d *deviceBytes) add(p part) {
	d.Parts = append(d.Parts, p)
	d.NamedBytes += p.Bytes
}

func detailsOf(tag stats.Tag) string {
	peer := tag.BackupBytes - tag.HostBytes - tag.DiskBytes
	var words []string
	for _, w := range []struct {
		what  string
		bytes uint64
	}{{"live", tag.LiveBytes}, {"paused", tag.PausedBytes}, {"slack", tag.SlackBytes}, {"on host", tag.HostBytes},
		{"on disk", tag.DiskBytes}, {"on peers", peer},
		{"without contents", tag.WithoutContents + tag.PauseWithoutContents}} {
		if w.bytes > 0 {
			words = append(words, w.what+" "+readable.Short(w.bytes))
		}
	}
	return strings.Join(words, ", ")
}

// openNVML opens NVML once: that takes a second where no process uses a device.
var openNVML = sync.OnceValues(nvml.Open)

// gpus returns the GPUs that NVML shows. Errors: nvml.ErrUnavailable, wrapped; an error for GPUs that do not answer,
// beside which gpus returns the other GPUs.
func gpus() ([]nvml.Device, error) {
	library, err := openNVML()
	if err != nil {
		return nil, err
	}
	return library.Devices()
}

// initialNamespace is the PID namespace of the driver's numbers. (PROC_PID_INIT_INO of Linux)
const initialNamespace = "pid:[4026531836]"

// measure asks NVML how much each process has in all on each of its devices.
func measure(found []process, shown []nvml.Device) {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	ours := map[string]int{} // how many of the processes are on a device
	for i := range found {
		found[i].Bytes = partsOf(found[i].ProcessState)
		for _, d := range found[i].Bytes {
			ours[d.UUID]++
		}
	}
	for i := range found {
		p := &found[i]
		for _, gpu := range shown {
			at := slices.IndexFunc(p.Bytes, func(d deviceBytes) bool { return d.UUID == gpu.UUID })
			_, used := usedBy(p.here, gpu)
			if at < 0 && namespace == initialNamespace && p.Error == "" && used {
				at = len(p.Bytes)
				p.Bytes = append(p.Bytes, deviceBytes{Device: -1, UUID: gpu.UUID, Parts: []part{}})
			}
			if at >= 0 {
				p.Bytes[at].measure(gpu, p.here, ours[gpu.UUID] == 1, namespace == initialNamespace)
			}
		}
	}
}

// usedBy returns how much NVML says that a process has on a GPU, and whether NVML has a figure.
func usedBy(pid int, gpu nvml.Device) (bytes uint64, known bool) {
	for _, p := range gpu.Processes {
		if p.PID == pid && p.Known {
			bytes, known = bytes+p.UsedBytes, true // on each part of the GPU
		}
	}
	return bytes, known
}

// measure takes the process's figure. alone says that tms knows no other process on the GPU, same that NVML and tms
// know processes by the same numbers. Without same, the number may belong to another process. A figure that is smaller
// than the bytes that the process names gives such a mistake away.
func (d *deviceBytes) measure(gpu nvml.Device, pid int, alone, same bool) {
	d.Name = gpu.Name
	used, known := usedBy(pid, gpu)
	switch {
	case known:
		d.UsedBytes, d.Source = used, fromNVML
	case len(gpu.Processes) == 1 && gpu.Processes[0].Known && alone && !same:
		d.UsedBytes, d.Source = gpu.Processes[0].UsedBytes, fromAlone
	case len(gpu.Processes) == 0 && alone && !same:
		d.UsedBytes, d.Source = gpu.UsedBytes, fromDevice
	}
	if !same && d.UsedBytes < d.NamedBytes {
		d.UsedBytes, d.Source = 0, fromNobody
	}
	d.RestBytes = d.UsedBytes - min(d.UsedBytes, d.NamedBytes)
}

// writeBytes writes the table of each process on each device. unavailable: why NVML could not be asked, or nil.
func writeBytes(text *page, found []process, unavailable error) {
	for i, p := range found {
		if i > 0 {
			text.WriteString("\n")
		}
		text.line(fmt.Sprintf("%d %s", p.PID, cmp.Or(readable.Printable(p.Error), p.title())))
		for _, d := range p.Bytes {
			d.write(text, p)
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

func (d *deviceBytes) write(to *page, p process) {
	device := fmt.Sprint("device ", d.Device)
	if d.Device < 0 {
		device = d.UUID
	}
	if d.Name != "" {
		device += ", " + d.Name
	}
	to.line("  " + device + ": " + map[string]string{
		fromNVML:   readable.Short(d.UsedBytes) + " by NVML",
		fromAlone:  readable.Short(d.UsedBytes) + " by NVML, of the only process there",
		fromDevice: readable.Short(d.UsedBytes) + " used of it, on which NVML shows no process",
		fromNobody: "NVML has no figure for the process",
	}[d.Source])
	rest := "context, modules and other"
	if p.Account == nil {
		rest = "what is not pausable"
	}
	width := len(rest)
	for _, part := range d.Parts {
		width = max(width, min(utf8.RuneCountInString(part.title()), 40))
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
		row(part.title(), part.Bytes, part.note())
		if part.details != "" {
			to.line("        " + part.details)
		}
	}
	if d.Source != fromNobody {
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

// title returns the name, with the kind of memory where the name alone does not show it.
func (p part) title() string {
	switch name := readable.Printable(p.Name); p.Kind {
	case kindTag:
		return "tag " + name
	case control.Pool:
		return strings.TrimSpace(name + " memory pool")
	case control.Graphs:
		return "allocations of graphs"
	default:
		return name
	}
}

func (p part) note() string {
	switch {
	case p.Kind != control.Allocations:
		return ""
	case p.Count == 1:
		return "1 allocation"
	}
	return fmt.Sprintf("%d allocations", p.Count)
}
