package group

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
	"tms/internal/machine/nvml"
)

// Plan is what a pause or resume of a process would do, according to its present status.
type Plan struct {
	PID     int          `json:"pid"`
	Op      string       `json:"op"`
	Fits    bool         `json:"fits"`
	Bytes   uint64       `json:"bytes"` // of device memory, freed or taken
	Devices []PlanDevice `json:"devices"`
	// Imported is memory of sets and other processes, which is only unmapped, or mapped again.
	Imported uint64 `json:"imported_bytes"`
	// WithoutContents is how much of Bytes has no backup: its contents would be gone, or for a resume are gone.
	WithoutContents uint64 `json:"without_contents_bytes"`
	// For a pause to host memory: the bytes that it needs, and the bytes available, nil if unknown or without limit.
	HostBytes          uint64  `json:"host_bytes"`
	HostAvailableBytes *uint64 `json:"host_available_bytes"`
	Legs               Legs    `json:"gpus,omitempty"` // for a move
	// Driver is what the driver must give back before a resume, by GPU.
	Driver []PlanDriver `json:"driver,omitempty"`
	Error  string       `json:"error,omitempty"` // why it would not be done
}

// PlanDevice is a device's part of a plan.
type PlanDevice struct {
	GPU    *int      `json:"gpu,omitempty"` // NVML's number, or nil if NVML does not show the GPU
	UUID   string    `json:"uuid"`
	Device int       `json:"device"` // the process's own number
	Bytes  uint64    `json:"bytes"`
	Free   *uint64   `json:"free_bytes"` // for a resume: how much is free for it, or nil if unknown
	Tags   []PlanTag `json:"tags"`
}

// PlanDriver is what a restore looks for on a GPU, and who else is about to take memory there.
type PlanDriver struct {
	GPU    int     `json:"gpu"` // NVML's number, or -1 if NVML does not show the GPU
	UUID   string  `json:"uuid"`
	Bytes  uint64  `json:"bytes"` // that the driver took
	Margin uint64  `json:"margin_bytes"`
	Free   *uint64 `json:"free_bytes"` // nil if not known
	Asking []int   `json:"asking"`     // processes of tms that have the GPU's lock or wait for it
}

// PlanTag is a part that is paused or resumed as a whole.
type PlanTag struct {
	Tag             string `json:"tag"`
	Bytes           uint64 `json:"bytes"`
	WithoutContents uint64 `json:"without_contents_bytes"`
}

// Planning makes plans for one process after another, each with what the earlier ones leave.
type Planning struct {
	Before func(*Plan) bool // begins each process's plan, and returns false to stop there
	tag    string
	force  bool
	host   *fleet.Host
	freed  map[string]int64 // by UUID; negative if plans take more than they free
	shown  []nvml.Device    // once a process needs that
}

// NewPlanning returns the planning of pauses and resumes of a tag, or of all memory if that is "". force says that
// threads that cannot be stopped do not matter.
func NewPlanning(tag *string, force bool) *Planning {
	p := &Planning{force: force, host: fleet.NewHost(nil), freed: map[string]int64{}}
	if tag != nil {
		p.tag = *tag
	}
	return p
}

// Of returns what an operation would do to a process, and why it would not as the error of an outcome.
func (p *Planning) Of(ctx context.Context, pid int, op string) (Plan, Outcome) {
	made := Plan{PID: pid, Op: op, Devices: []PlanDevice{}}
	connection, state, err := Reach(ctx, pid)
	o := Ended(Outcome{PID: pid}, err)
	if made.Error = o.Error; err == nil {
		if p.Before == nil || p.Before(&made) {
			p.plan(&made, state)
		}
		connection.Close()
	}
	made.Fits = made.Error == ""
	o.OK, o.Error = made.Fits, made.Error
	return made, o
}

func (p *Planning) plan(made *Plan, state control.ProcessState) {
	resume := made.Op == control.Resume
	if state.Driver != nil && state.Driver.Lost != "" {
		made.Error = state.Driver.Lost
		return
	}
	if resume && state.Stats.Everything {
		p.planDriver(made, state)
	}
	numbered := []fleet.Process{{ProcessState: state}}
	fleet.Number(numbered, fleet.Shown())
	needs := fleet.NodeBytes{}
	for _, d := range numbered[0].Stats.Devices {
		part, host := PlanDevice{GPU: d.GPU, UUID: d.UUID, Device: d.Device, Tags: []PlanTag{}}, uint64(0)
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
			part.Tags = append(part.Tags, PlanTag{tag.Tag, bytes, lost})
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
		needs.Add(d, host)
		gpu := cmp.Or(d.UUID, strconv.Itoa(d.Device))
		if resume {
			if free, known := p.freeOn(gpu, d.FreeBytes, state.Stats.Everything); known {
				part.Free = &free
				if free < part.Bytes && made.Error == "" {
					made.Error = fmt.Sprintf("it does not fit: %s would have %s free and %s are needed",
						fleet.Name(d.GPU, d.UUID, d.Device), readable.Bytes(free), readable.Bytes(part.Bytes))
				}
			}
			p.freed[gpu] -= int64(part.Bytes)
		} else {
			p.freed[gpu] += int64(part.Bytes)
		}
		made.Bytes += part.Bytes
		made.Devices = append(made.Devices, part)
	}
	made.HostBytes = needs.Sum()
	if resume || made.Bytes+made.Imported == 0 {
		return
	}
	process := &fleet.Process{ProcessState: state, Here: made.PID}
	if available := p.host.Available(process, needs); available < math.MaxUint64 {
		made.HostAvailableBytes = &available
		if available < made.HostBytes {
			made.Error = fmt.Sprintf("it does not fit: %s of host memory are available and %s are needed for "+
				"contents (%s)", readable.Bytes(available), readable.Bytes(made.HostBytes), waysOut)
		}
	}
	if made.Error == "" {
		p.host.Take(process, needs)
	}
	if !state.Gated && !p.force {
		made.Error = "its threads cannot be stopped: tms run did not start it, so it takes --force"
	}
}

// freeOn returns what is free on a GPU after the plans so far. While the driver has the process, it cannot ask.
func (p *Planning) freeOn(gpu string, seen uint64, everything bool) (free uint64, known bool) {
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
func (p *Planning) planDriver(made *Plan, state control.ProcessState) {
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
		part := PlanDriver{GPU: -1, UUID: d.UUID, Bytes: d.Bytes, Asking: []int{}}
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
		part.Asking = append(part.Asking, Lockers(d.UUID)...)
		p.freed[d.UUID] -= int64(d.Bytes)
		made.Driver = append(made.Driver, part)
	}
}
