package group

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
	"tms/internal/machine/nvml"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// route is the way of one process.
type route struct {
	there, back []checkpoint.Pair  // of all GPUs
	legs        Legs               // of those on which the process is, and which change
	toward      stats.Destinations // the same, for the process
}

// Leg is what goes from one GPU to another.
type Leg struct {
	From    string `json:"from"` // UUIDs
	To      string `json:"to"`
	Bytes   uint64 `json:"bytes"` // all that is known
	Free    uint64 `json:"free_bytes"`
	Room    uint64 `json:"room_bytes"` // for contents that wait there; 0, too, if the process cannot put any there
	FromGPU int    `json:"-"`          // as NVML numbers them
	ToGPU   int    `json:"-"`
	leaves  uint64 // of Bytes: what NVML says
	near    bool   // the process can put contents there
	spare   uint64 // bytes that a restore there needs beside the process's own
}

// Legs are those of one process.
type Legs []Leg

func (l Legs) String() string {
	var words []string
	for _, leg := range l {
		words = append(words, fmt.Sprintf("from GPU %d to GPU %d", leg.FromGPU, leg.ToGPU))
	}
	return strings.Join(words, ", ")
}

// find returns the place in a list of the GPU that a user names.
func find(gpus []nvml.Device, name string) (at int, err error) {
	at = slices.IndexFunc(gpus, func(gpu nvml.Device) bool { return name == strconv.Itoa(gpu.Index) || name == gpu.UUID })
	if at < 0 {
		err = cuda.Refuse(cuda.InvalidValue, "there is no GPU %q here: give a number or a UUID that nvidia-smi -L lists",
			name)
	}
	return at, err
}

// wanted returns which GPUs the user names, and where each of all goes, by their places in the list. What is taken
// changes places with what takes it. on are those of the process.
func (v *Move) wanted(gpus, on []nvml.Device) (named []bool, to []int, err error) {
	pairs := v.Pairs
	if v.From != "" {
		pairs = []string{v.From + "=" + v.To}
	} else if v.To != "" && len(on) == 1 {
		pairs = []string{on[0].UUID + "=" + v.To}
	} else if v.To != "" {
		return nil, nil, cuda.Refuse(cuda.InvalidValue, "it uses %s: say by --map where each goes, or by --from which "+
			"one goes to %s", listed(on), v.To)
	}
	named = make([]bool, len(gpus))
	for i := range gpus {
		to = append(to, i)
	}
	for _, pair := range pairs {
		name, other, _ := strings.Cut(pair, "=")
		old, err := find(gpus, name)
		new, failed := find(gpus, other)
		if err = cmp.Or(err, failed); err != nil {
			return nil, nil, err
		}
		at := slices.Index(to, new)
		if named[at] || named[old] {
			return nil, nil, cuda.Refuse(cuda.InvalidValue, "%s: each GPU can go to one other, and each be taken once",
				strings.Join(pairs, ","))
		}
		to[at], to[old], named[old] = to[old], new, true
	}
	return named, to, nil
}

// Pairs returns where the driver restores a process from a snapshot: each of its GPUs, which may be another machine's,
// on the GPU that a user names. A GPU changes places with the one that takes it.
func Pairs(of []nvml.Device, names []string) (pairs []checkpoint.Pair, err error) {
	shown, err := fleet.GPUs()
	if err != nil {
		return nil, fmt.Errorf("NVML does not tell which GPUs there are: %w", err)
	}
	var olds []string // what each of those shown takes
	for _, gpu := range shown {
		olds = append(olds, gpu.UUID)
	}
	for i, old := range of {
		new, err := find(shown, names[i])
		if err != nil {
			return nil, err
		}
		if shown[new].Name != old.Name {
			return nil, cuda.Refuse(cuda.NotSupported, "the snapshot was on a %s, and GPU %d is a %s: the driver restores a "+
				"process only on a GPU of its model", old.Name, shown[new].Index, shown[new].Name)
		}
		if at := slices.Index(olds, old.UUID); at >= 0 {
			olds[at], olds[new] = olds[new], olds[at]
		} else {
			olds[new] = old.UUID
		}
	}
	for i, gpu := range shown {
		pairs = append(pairs, checkpoint.Pair{Old: olds[i], New: gpu.UUID})
	}
	return pairs, nil
}

func listed(gpus []nvml.Device) string {
	var names []string
	for _, gpu := range gpus {
		names = append(names, fmt.Sprint("GPU ", gpu.Index))
	}
	return strings.Join(names, " and ")
}

// What is no failure with --all, and after a move that was killed: the process uses none of the GPUs that change, or it
// is there.
var (
	errElsewhere = cuda.Refuse(cuda.InvalidValue, "it does not use the GPU")
	errThere     = cuda.Refuse(cuda.InvalidValue, "it is there already")
)

// route finds which GPUs a process moves to, and refuses a way that the driver would refuse. here is the process's
// number in this namespace, and out says that the driver has the process.
func (v *Move) route(here int, state control.ProcessState, out bool) (way route, err error) {
	shown, err := fleet.GPUs()
	if err != nil {
		return way, fmt.Errorf("NVML does not tell which GPUs there are: %w", err)
	}
	found := []fleet.Process{{ProcessState: state, Here: here}}
	fleet.Measure(found, shown)
	need, used := map[string]uint64{}, map[string]uint64{}
	for _, d := range found[0].Bytes {
		if d.Device >= 0 || d.UsedBytes > 0 {
			need[d.UUID], used[d.UUID] = max(d.UsedBytes, d.NamedBytes), d.UsedBytes
		}
	}
	later := map[string]uint64{} // bytes that are needed after the restore
	for d, tag := range state.Tags() {
		later[d.UUID] += tag.PhysicalBytes
		if state.Stats.Everything { // a resume takes what is paused
			need[d.UUID] += tag.PausedBytes
			later[d.UUID] += tag.PausedBytes
		}
	}
	if out && state.Driver != nil {
		for _, d := range state.Driver.Devices {
			if _, uses := need[d.UUID]; uses || d.Bytes > 0 {
				need[d.UUID] += d.Bytes
			}
		}
	}
	var on []nvml.Device
	for _, gpu := range shown {
		if _, uses := need[gpu.UUID]; uses {
			on = append(on, gpu)
		}
	}
	if len(on) != len(need) || len(on) == 0 {
		return way, cuda.Refuse(cuda.InvalidValue, "it uses %d GPUs, of which NVML shows %d here", len(need), len(on))
	}
	named, to, err := v.wanted(shown, on)
	if err != nil {
		return way, err
	}
	elsewhere := true
	way.toward = stats.Destinations{}
	for i, old := range shown {
		_, uses := need[old.UUID]
		elsewhere = elsewhere && !(uses && named[i])
	}
	if elsewhere {
		return way, fmt.Errorf("%w: it is on %s", errElsewhere, listed(on))
	}
	for i, old := range shown {
		new := shown[to[i]]
		way.there = append(way.there, checkpoint.Pair{Old: old.UUID, New: new.UUID})
		way.back = append(way.back, checkpoint.Pair{Old: new.UUID, New: old.UUID})
		_, uses := need[old.UUID]
		switch {
		case old.UUID == new.UUID:
		case uses && !named[i]:
			return way, cuda.Refuse(cuda.InvalidValue, "it uses GPU %d, too: say by --map where that goes", old.Index)
		case old.Name != new.Name:
			return way, cuda.Refuse(cuda.NotSupported, "GPU %d is a %s, and GPU %d a %s: the driver moves a process only "+
				"between GPUs of one model", old.Index, old.Name, new.Index, new.Name)
		case uses:
			way.legs = append(way.legs, Leg{From: old.UUID, To: new.UUID, Bytes: need[old.UUID], Free: new.FreeBytes,
				FromGPU: old.Index, ToGPU: new.Index, leaves: used[old.UUID],
				spare: max(checkpoint.Margin(new.TotalBytes), later[old.UUID]) - later[old.UUID],
				near: slices.ContainsFunc(state.Stats.Devices, func(d stats.Device) bool {
					return d.UUID == old.UUID && slices.Contains(d.Peers, new.UUID)
				})})
		}
	}
	if len(way.legs) == 0 {
		return way, fmt.Errorf("%w: it is on %s", errThere, listed(on))
	}
	return way, nil
}

// routes finds the ways of processes that move together, and refuses what cannot be. One that is on other GPUs alone
// stays there, and pauses with the others.
func (v *Move) routes(g *Group) error {
	err := g.each(func(m *Member) (err error) {
		m.way, err = v.route(m.Peer, m.state, m.at == checkpoint.Checkpointed)
		return err
	})
	stays := func(m *Member) bool { return errors.Is(m.err, errElsewhere) || errors.Is(m.err, errThere) }
	stay := g.those(stays)
	if len(stay) == len(g.Members) {
		return err
	}
	for _, m := range stay {
		m.err = nil
	}
	if err = g.failed(); err == nil {
		err = v.fit(g)
	}
	return err
}

// fit refuses what has no room, and divides the room that is left among the contents: all wait there at once.
func (v *Move) fit(g *Group) error {
	free, need := map[string]uint64{}, map[string]uint64{}
	each := func(do func(leg *Leg)) {
		for _, m := range g.Members {
			for i := range m.way.legs {
				do(&m.way.legs[i])
			}
		}
	}
	each(func(leg *Leg) { free[leg.To], need[leg.To] = leg.Free, need[leg.To]+leg.Bytes })
	each(func(leg *Leg) { free[leg.From] += leg.leaves })
	var err error
	each(func(leg *Leg) {
		if leg.Free = uint64(max(0, int64(free[leg.To])-v.taken[leg.To])); leg.Free < need[leg.To] {
			err = cuda.Refuse(cuda.OutOfMemory, "GPU %d has %s free, and %s are needed there", leg.ToGPU,
				readable.Bytes(leg.Free), readable.Bytes(need[leg.To]))
		}
	})
	if err != nil {
		return err
	}
	each(func(leg *Leg) {
		if leg.near {
			leg.Room = leg.Free - need[leg.To]
			leg.Room = min(leg.Room-min(leg.Room, leg.spare), leg.Bytes) // or the restore would find no room
			need[leg.To] += leg.Room
		}
	})
	for _, m := range g.Members {
		for _, leg := range m.way.legs {
			m.way.toward[leg.From] = stats.Destination{Device: leg.To, Room: leg.Room}
		}
	}
	return nil
}
