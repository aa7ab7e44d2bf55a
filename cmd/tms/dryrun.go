package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tms/internal/checkpoint"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/hostmemory"
	"tms/internal/nvml"
	"tms/internal/readable"
)

// plan is what a pause or resume of a process would do, according to its present status.
type plan struct {
	PID     int          `json:"pid"`
	Op      string       `json:"op"`
	Fits    bool         `json:"fits"`
	Bytes   uint64       `json:"bytes"` // of device memory, freed or taken
	Devices []planDevice `json:"devices"`
	// Imported is memory of sets and other processes, which is only unmapped, or mapped again.
	Imported uint64 `json:"imported_bytes"`
	// WithoutContents is how much of Bytes has no backup: its contents would be gone, or for a resume are gone.
	WithoutContents uint64 `json:"without_contents_bytes"`
	// For a pause to host memory: the bytes that it needs, and the bytes available, nil if unknown or without limit.
	HostBytes          uint64  `json:"host_bytes"`
	HostAvailableBytes *uint64 `json:"host_available_bytes"`
	Legs               legs    `json:"gpus,omitempty"` // for a move
	// Driver is what the driver must give back before a resume, by GPU.
	Driver []planDriver `json:"driver,omitempty"`
	Error  string       `json:"error,omitempty"` // why it would not be done
}

// planDevice is a device's part of a plan.
type planDevice struct {
	Device int       `json:"device"`
	Bytes  uint64    `json:"bytes"`
	Free   *uint64   `json:"free_bytes"` // for a resume: how much is free for it, or nil if unknown
	Tags   []planTag `json:"tags"`
}

// planDriver is what a restore looks for on a GPU, and who else is about to take memory there.
type planDriver struct {
	GPU    int     `json:"gpu"` // NVML's number, or -1 if NVML does not show the GPU
	UUID   string  `json:"uuid"`
	Bytes  uint64  `json:"bytes"` // that the driver took
	Margin uint64  `json:"margin_bytes"`
	Free   *uint64 `json:"free_bytes"` // nil if not known
	Asking []int   `json:"asking"`     // processes of tms that have the GPU's lock or wait for it
}

type planTag struct {
	Tag             string `json:"tag"`
	Bytes           uint64 `json:"bytes"`
	WithoutContents uint64 `json:"without_contents_bytes"`
}

// planning makes plans for one process after another, each with what the earlier ones leave.
type planning struct {
	steering
	force    bool
	plans    []plan
	outcomes []outcome
	host     []hostmemory.Promised // what others are about to take, and what earlier pauses would
	reserved byNode                // host memory that is reserved and free
	freed    map[string]int64      // by UUID; negative if plans take more than they free
	shown    []nvml.Device         // once a process needs that
}

func (s steering) planning(force bool) *planning {
	return &planning{steering: s, force: force, plans: []plan{}, host: ledger.Promised(), reserved: reservedFree(),
		freed: map[string]int64{}}
}

// run prints the plan of each process.
func (p *planning) run(command *cobra.Command, op string, pids ...int) {
	for _, pid := range pids {
		made := plan{PID: pid, Op: op, Devices: []planDevice{}}
		connection, state, err := reach(context.Background(), pid)
		o := ended(outcome{PID: pid}, err)
		if made.Error = o.Error; err == nil {
			if p.before == nil || p.before(&made) {
				p.plan(&made, state)
			}
			connection.Close()
		}
		made.Fits = made.Error == ""
		o.OK, o.Error = made.Fits, made.Error
		p.plans, p.outcomes = append(p.plans, made), append(p.outcomes, o)
		if !p.asJSON {
			fmt.Fprint(command.OutOrStdout(), made.text())
		}
		o.complain(command)
	}
}

func (p *planning) plan(made *plan, state control.ProcessState) {
	resume := made.Op == control.Resume
	if state.Driver != nil && state.Driver.Lost != "" {
		made.Error = state.Driver.Lost
		return
	}
	if resume && state.Stats.Everything {
		p.planDriver(made, state)
	}
	needs := byNode{}
	for _, d := range state.Stats.Devices {
		part, host := planDevice{Device: d.Device, Tags: []planTag{}}, uint64(0)
		for _, tag := range d.Tags {
			bytes, imported, lost := tag.PhysicalBytes, tag.ImportedBytes, tag.PauseWithoutContents
			if resume {
				bytes, imported, lost = tag.PausedBytes, tag.ImportedPaused, tag.WithoutContents
			}
			if p.tag != "" && p.tag != tag.Tag {
				continue
			}
			made.Imported += imported
			if bytes == 0 {
				continue
			}
			if !resume {
				host += tag.PauseHostBytes
			}
			if made.Op == control.Move { // it saves all
				host, lost = host+lost, 0
			}
			part.Tags = append(part.Tags, planTag{tag.Tag, bytes, lost})
			part.Bytes += bytes
			made.WithoutContents += lost
		}
		if part.Bytes == 0 {
			continue
		}
		for _, leg := range made.Legs {
			if leg.From == d.UUID && leg.Room >= host { // else some of it may fit there
				host = 0
			}
		}
		needs.add(d, host)
		gpu := cmp.Or(d.UUID, strconv.Itoa(d.Device))
		if resume {
			if free, known := p.freeOn(gpu, d.FreeBytes, state.Stats.Everything); known {
				part.Free = &free
				if free < part.Bytes && made.Error == "" {
					made.Error = fmt.Sprintf("it does not fit: device %d would have %s free and %s are needed",
						d.Device, readable.Bytes(free), readable.Bytes(part.Bytes))
				}
			}
			p.freed[gpu] -= int64(part.Bytes)
		} else {
			p.freed[gpu] += int64(part.Bytes)
		}
		made.Bytes += part.Bytes
		made.Devices = append(made.Devices, part)
	}
	made.HostBytes = needs.sum()
	if resume || made.Bytes+made.Imported == 0 {
		return
	}
	available := hostmemory.Available(strconv.Itoa(made.PID), p.host)
	if available < math.MaxUint64 {
		available += p.reserved.serves(needs)
		made.HostAvailableBytes = &available
		if available < made.HostBytes {
			made.Error = fmt.Sprintf("it does not fit: %s of host memory are available and %s are needed for "+
				"contents (%s)", readable.Bytes(available), readable.Bytes(made.HostBytes), waysOut)
		}
	}
	if made.Error == "" {
		rest := made.HostBytes - p.reserved.serve(needs)
		p.host = append(p.host, hostmemory.Promised{PID: made.PID, Bytes: rest})
	}
	if !state.Gated && !p.force {
		made.Error = "its threads cannot be stopped: tms run did not start it, so it takes --force"
	}
}

// freeOn returns what is free on a GPU after the plans so far. While the driver has the process, it cannot ask.
func (p *planning) freeOn(gpu string, seen uint64, everything bool) (free uint64, known bool) {
	if everything {
		at := slices.IndexFunc(p.shown, func(d nvml.Device) bool { return d.UUID == gpu })
		if at < 0 {
			return 0, false
		}
		seen = p.shown[at].FreeBytes
	}
	return uint64(max(0, int64(seen)+p.freed[gpu])), true
}

// planDriver plans the driver's part of a resume, as restore looks for it.
func (p *planning) planDriver(made *plan, state control.ProcessState) {
	if p.shown == nil {
		p.shown, _ = fleet.GPUs()
	}
	if state.Driver == nil {
		if !checkpoint.Overridden() {
			made.Error = notNoted("no tms that paused it has noted it")
		}
		return
	}
	for _, d := range state.Driver.Devices {
		part := planDriver{GPU: -1, UUID: d.UUID, Bytes: d.Bytes, Asking: []int{}}
		if d.Bytes == 0 {
			continue
		}
		if free, known := p.freeOn(d.UUID, 0, true); known {
			at := slices.IndexFunc(p.shown, func(shown nvml.Device) bool { return shown.UUID == d.UUID })
			part.GPU, part.Free, part.Margin = p.shown[at].Index, &free, checkpoint.Margin(p.shown[at].TotalBytes)
			if wanted := part.Bytes + part.Margin; free < wanted && made.Error == "" {
				made.Error = fmt.Sprintf("it does not fit: GPU %d would have %s free and the driver needs %s", part.GPU,
					readable.Bytes(free), readable.Bytes(wanted))
			}
		} else if !checkpoint.Overridden() && made.Error == "" {
			made.Error = fmt.Sprintf("NVML does not show %s here, so whether there is room for the restore cannot be seen",
				d.UUID)
		}
		part.Asking = append(part.Asking, lockersOf(d.UUID)...)
		p.freed[d.UUID] -= int64(d.Bytes)
		made.Driver = append(made.Driver, part)
	}
}

func (d *planDriver) text(pid int) string {
	text := fmt.Sprintf("%d: the driver would first take %s of ", pid, readable.Bytes(d.Bytes))
	if d.Free == nil {
		return text + d.UUID + ", which NVML does not show\n"
	}
	text += fmt.Sprintf("GPU %d, and wants a margin of %s; %s free", d.GPU, readable.Bytes(d.Margin),
		readable.Bytes(*d.Free))
	if len(d.Asking) > 0 {
		text += "; its lock is wanted by " + strings.Trim(fmt.Sprint(d.Asking), "[]")
	}
	return text + "\n"
}

func (m *plan) text() string {
	var text strings.Builder
	verb, done, others := "free", "pause", "unmap"
	if m.Op == control.Resume {
		verb, done, others = "take", "resume", "map"
	} else if m.Op == control.Move {
		done = "move"
	}
	if m.Bytes+m.Imported == 0 && len(m.Legs) == 0 && len(m.Driver) == 0 && m.Error == "" {
		return fmt.Sprintf("%d: nothing to %s\n", m.PID, done)
	}
	for _, d := range m.Driver {
		text.WriteString(d.text(m.PID))
	}
	var lost []string
	for _, d := range m.Devices {
		var tags []string
		for _, tag := range d.Tags {
			name := readable.Printable(tag.Tag)
			tags = append(tags, readable.Bytes(tag.Bytes)+" of "+name)
			if tag.WithoutContents > 0 && !slices.Contains(lost, name) {
				lost = append(lost, name)
			}
		}
		fmt.Fprintf(&text, "%d: would %s %s of device %d: %s", m.PID, verb, readable.Bytes(d.Bytes), d.Device,
			strings.Join(tags, ", "))
		if d.Free != nil {
			fmt.Fprintf(&text, "; %s free", readable.Bytes(*d.Free))
		} else if m.Op == control.Resume {
			text.WriteString("; what is free is not known: NVML does not show the GPU")
		}
		text.WriteByte('\n')
	}
	if m.Imported > 0 {
		fmt.Fprintf(&text, "%d: would %s "+ofOthers+"\n", m.PID, others, readable.Bytes(m.Imported))
	}
	for _, leg := range m.Legs {
		how := ""
		if leg.Room == 0 {
			how = "; contents go through host memory"
		}
		fmt.Fprintf(&text, "%d: would move %s from GPU %d to GPU %d; %s free%s\n", m.PID, readable.Bytes(leg.Bytes),
			leg.from, leg.to, readable.Bytes(leg.Free), how)
	}
	if m.WithoutContents > 0 {
		fmt.Fprintf(&text, "%d: would %s%s: %s\n", m.PID, verb, without(" ", m.WithoutContents),
			strings.Join(lost, ", "))
	}
	if m.HostBytes > 0 {
		available := ""
		if m.HostAvailableBytes != nil {
			available = fmt.Sprintf("; %s available", readable.Bytes(*m.HostAvailableBytes))
		}
		fmt.Fprintf(&text, "%d: would take %s of host memory for contents%s\n", m.PID, readable.Bytes(m.HostBytes),
			available)
	}
	return text.String()
}
