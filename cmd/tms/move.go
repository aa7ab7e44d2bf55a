package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"tms/internal/checkpoint"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/nvml"
	"tms/internal/readable"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// A move is a pause of everything after which the driver gives the process back on other GPUs. It keeps no record
// either: what is left of a move that was killed is a pause of everything, which the next move or a resume ends.

// moving is one tms move.
type moving struct {
	steering
	pausing  control.Request
	from, to string
	pairs    []string // OLD=NEW
	turn     sync.Mutex
	sharers  map[int][]int    // that each of the processes has
	known    map[int]*jobRank // what came of those before, or in a dry run would
	taken    map[string]int64 // by UUID: what those will take, in a dry run
}

// moved is what a move has done, for its outcome.
type moved struct {
	Legs       legs    `json:"gpus"`
	With       []int   `json:"with,omitempty"` // the processes that have moved with it, which share its times
	Pause      float64 `json:"pause_seconds"`
	Checkpoint float64 `json:"checkpoint_seconds"` // with the lock
	Restore    float64 `json:"restore_seconds"`    // with the unlock
	Resume     float64 `json:"resume_seconds"`
}

// route is the way of one process.
type route struct {
	there, back []checkpoint.Pair  // of all GPUs
	legs        legs               // of those on which the process is, and which change
	toward      stats.Destinations // the same, for the process
}

// leg is what goes from one GPU to another.
type leg struct {
	From     string `json:"from"` // UUIDs
	To       string `json:"to"`
	Bytes    uint64 `json:"bytes"` // all that is known
	Free     uint64 `json:"free_bytes"`
	Room     uint64 `json:"room_bytes"` // for contents that wait there; 0, too, if the process cannot put any there
	from, to int
	leaves   uint64 // of Bytes: what NVML says
	near     bool   // the process can put contents there
	spare    uint64 // what a restore there wants beside all that the process takes
}

type legs []leg

func (l legs) String() string {
	var words []string
	for _, leg := range l {
		words = append(words, fmt.Sprintf("from GPU %d to GPU %d", leg.from, leg.to))
	}
	return strings.Join(words, ", ")
}

func moveCommand() *cobra.Command {
	var m moving
	var timeout duration
	var force bool
	command := &cobra.Command{
		Use:   "move PID...",
		Short: "Move running processes to other GPUs",
		Long: `Moves running processes to other GPUs of the same model: the driver takes all of
each, and restores it there. GPUs have the numbers that nvidia-smi shows.`,
		Example: `  tms move 12345 --to 1
  tms move 12345 --map 0=2,1=3
  tms move --all --from 0 --to 1`,
		RunE: func(command *cobra.Command, arguments []string) error {
			switch {
			case (m.to == "") == (len(m.pairs) == 0):
				return errors.New("give either --to, or --map with the GPUs that change, such as 0=2,1=3")
			case m.from != "" && m.to == "":
				return errors.New("--from says what goes to --to: leave it out of a --map")
			case m.all && m.from == "" && len(m.pairs) == 0:
				return errors.New("--all takes --from or --map: which GPU is to be emptied?")
			}
			for _, pair := range m.pairs {
				if old, new, found := strings.Cut(pair, "="); !found || old == "" || new == "" {
					return fmt.Errorf("--map %q: give each GPU and where it goes, such as 0=2,1=3", pair)
				}
			}
			_ = os.Unsetenv("CUDA_VISIBLE_DEVICES") // the driver is given all GPUs
			m.known, m.taken = map[int]*jobRank{}, map[string]int64{}
			m.pausing = control.Request{Op: control.Pause, Everything: true, SaveAll: true, Force: force,
				Timeout: new(timeout.Seconds())}
			if m.dryRun {
				m.before = m.begin
				return m.plan(command, control.Pause, force, arguments)
			}
			return m.run(command, "moving", arguments, m.move, func(o outcome) string {
				if o.Move == nil {
					return o.nothing("move")
				}
				text := fmt.Sprintf("moved %v in %.2f s (pause %.2f, checkpoint %.2f, restore %.2f, resume %.2f)",
					o.Move.Legs, o.Seconds, o.Move.Pause, o.Move.Checkpoint, o.Move.Restore, o.Move.Resume)
				if len(o.Move.With) > 0 {
					text += fmt.Sprintf(", together with %s", numbers(o.Move.With))
				}
				if o.MovedBytes > 0 {
					text += fmt.Sprintf("; %s of contents from GPU to GPU", readable.Bytes(o.MovedBytes))
				}
				if o.NCCL != "" {
					text += "; " + o.NCCL
				}
				return text
			})
		},
	}
	addJob(command, &m.job)
	m.addProcesses(command)
	m.addOutput(command)
	addTimeout(command, &timeout, &force)
	command.Flags().StringVar(&m.to, "to", "", "`GPU` to move to, by number or UUID")
	command.Flags().StringVar(&m.from, "from", "", "move only what is on this `GPU`")
	command.Flags().StringSliceVar(&m.pairs, "map", nil, "`OLD=NEW` for each GPU that changes, with commas between")
	for _, flag := range []string{"to", "from", "map"} {
		completes(command, flag)
	}
	return command
}

// find returns the place in a list of the GPU that a user names.
func find(gpus []nvml.Device, name string) (at int, err error) {
	at = slices.IndexFunc(gpus, func(gpu nvml.Device) bool { return name == strconv.Itoa(gpu.Index) || name == gpu.UUID })
	if at < 0 {
		err = cuda.Refuse(cuda.InvalidValue, "%q is not one of the %d GPUs here; give the number or the UUID that "+
			"nvidia-smi -L lists", name, len(gpus))
	}
	return at, err
}

// wanted returns which GPUs the user names, and where each of all goes, by their places in the list. What is taken
// changes places with what takes it. on are those of the process.
func (m *moving) wanted(gpus, on []nvml.Device) (named []bool, to []int, err error) {
	pairs := m.pairs
	if m.from != "" {
		pairs = []string{m.from + "=" + m.to}
	} else if m.to != "" && len(on) == 1 {
		pairs = []string{on[0].UUID + "=" + m.to}
	} else if m.to != "" {
		return nil, nil, cuda.Refuse(cuda.InvalidValue, "it uses %s: say by --map where each goes, or by --from which "+
			"one goes to %s", listed(on), m.to)
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
func (m *moving) route(here int, state control.ProcessState, out bool) (r route, err error) {
	shown, err := fleet.GPUs()
	if err != nil {
		return r, fmt.Errorf("NVML does not tell which GPUs there are: %w", err)
	}
	found := []fleet.Process{{ProcessState: state, Here: here}}
	fleet.Measure(found, shown)
	need, used := map[string]uint64{}, map[string]uint64{}
	for _, d := range found[0].Bytes {
		if d.Device >= 0 || d.UsedBytes > 0 {
			need[d.UUID], used[d.UUID] = max(d.UsedBytes, d.NamedBytes), d.UsedBytes
		}
	}
	later := map[string]uint64{} // what comes after the restore
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
		return r, cuda.Refuse(cuda.InvalidValue, "it uses %d GPUs, of which NVML shows %d here", len(need), len(on))
	}
	named, to, err := m.wanted(shown, on)
	if err != nil {
		return r, err
	}
	elsewhere := true
	r.toward = stats.Destinations{}
	for i, old := range shown {
		_, uses := need[old.UUID]
		elsewhere = elsewhere && !(uses && named[i])
	}
	if elsewhere {
		return r, fmt.Errorf("%w: it is on %s", errElsewhere, listed(on))
	}
	for i, old := range shown {
		new := shown[to[i]]
		r.there = append(r.there, checkpoint.Pair{Old: old.UUID, New: new.UUID})
		r.back = append(r.back, checkpoint.Pair{Old: new.UUID, New: old.UUID})
		_, uses := need[old.UUID]
		switch {
		case old.UUID == new.UUID:
		case uses && !named[i]:
			return r, cuda.Refuse(cuda.InvalidValue, "it uses GPU %d, too: say by --map where that goes", old.Index)
		case old.Name != new.Name:
			return r, cuda.Refuse(cuda.NotSupported, "GPU %d is a %s, and GPU %d a %s: the driver moves a process only "+
				"between GPUs of one model", old.Index, old.Name, new.Index, new.Name)
		case uses:
			r.legs = append(r.legs, leg{From: old.UUID, To: new.UUID, Bytes: need[old.UUID], Free: new.FreeBytes,
				from: old.Index, to: new.Index, leaves: used[old.UUID],
				spare: max(checkpoint.Margin(new.TotalBytes), later[old.UUID]) - later[old.UUID],
				near: slices.ContainsFunc(state.Stats.Devices, func(d stats.Device) bool {
					return d.UUID == old.UUID && slices.Contains(d.Peers, new.UUID)
				})})
		}
	}
	if len(r.legs) == 0 {
		return r, fmt.Errorf("%w: it is on %s", errThere, listed(on))
	}
	return r, nil
}

// movable finds the driver, and in which state it has the process. Errors: the driver's, and what the process says. A
// job may have nothing left of that once it is paused.
func (m *moving) movable(r *jobRank) (err error) {
	if r.driver, err = checkpoint.Open(); err == nil {
		err = r.driver.CanMove()
	}
	if err == nil {
		r.at, err = r.driver.State(r.PID)
	}
	if err == nil && r.at == checkpoint.Running {
		err = untried()
	}
	if err == nil && r.state.Stays != "" && m.job == "" {
		err = cuda.Refuse(cuda.NotSupported, "%s",
			readable.Printable(strings.TrimSuffix(r.state.Stays, otherwise)))
	}
	return err
}

// halfway reports whether a command was killed after the driver took the process, or before it resumed.
func (r *jobRank) halfway() bool {
	return r.at != checkpoint.Checkpointed && (r.at != checkpoint.Running || r.state.Stats.Everything)
}

// begin begins a plan with where a process would go, and reports whether it would.
func (m *moving) begin(made *plan) bool {
	made.Op = control.Move
	if m.known[made.PID] == nil {
		j, err := m.gather(context.Background(), made.PID)
		if err == nil {
			err = j.each(func(r *jobRank) error {
				err := m.movable(r)
				if err == nil && r.halfway() {
					err = fmt.Errorf("another command has paused half of it; tms resume %d or the move itself ends that",
						r.PID)
				}
				return err
			})
		}
		if err == nil {
			err = m.routes(j)
		}
		for _, r := range j.ranks {
			for _, leg := range r.way.legs {
				m.taken[leg.To] += int64(leg.Bytes)
				m.taken[leg.From] -= int64(leg.Bytes)
			}
		}
		m.know(j, err)
		j.close()
	}
	r := m.known[made.PID]
	if m.all && errors.Is(r.err, errElsewhere) {
		return false
	}
	if made.Legs = r.way.legs; r.err != nil {
		made.Error = r.err.Error()
	}
	return r.err == nil
}

// know notes what came of processes that move together.
func (m *moving) know(j *job, err error) {
	for _, r := range j.ranks {
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("left as it was: %w", err)
		}
		if r.err != nil {
			r.outcome = outcome{PID: r.PID}
		}
		m.known[r.PID] = r
	}
}

// gather finds the processes that move with one: all of its job; else those that share memory with it, and with those.
func (m *moving) gather(ctx context.Context, pid int) (*job, error) {
	if m.sharers == nil && len(m.pids) > 1 {
		m.sharers = map[int][]int{}
		for _, p := range fleet.Ask(answerTime, m.pids...) {
			for _, other := range p.Sharers { // only one of the two may know
				m.sharers[p.PID], m.sharers[other] = append(m.sharers[p.PID], other), append(m.sharers[other], p.PID)
			}
		}
	}
	pids := []int{pid}
	if m.job != "" {
		pids = m.pids
	}
	for i := 0; i < len(pids); i++ {
		pids = distinct(append(pids, m.sharers[pids[i]]...))
	}
	j := &job{request: m.pausing, moves: true, alone: len(pids) == 1}
	for _, pid := range pids {
		if slices.Contains(m.pids, pid) {
			j.ranks = append(j.ranks, &jobRank{outcome: outcome{PID: pid}})
		}
	}
	return j, j.each(func(r *jobRank) (err error) {
		if r.Conn, r.state, err = reach(ctx, r.PID); err == nil {
			err = j.complete(r.state)
		}
		return err
	})
}

// complete refuses to move a process without one that shares its memory.
func (j *job) complete(state control.ProcessState) error {
	for _, pid := range state.Sharers {
		if !slices.ContainsFunc(j.ranks, func(r *jobRank) bool { return r.PID == pid }) {
			return cuda.Refuse(cuda.NotSupported, "it shares memory with process %d, which does not move along: name "+
				"that, too, or end it; all that share memory move together", pid)
		}
	}
	return nil
}

// mayMove refuses what only shows when a process has paused.
func (j *job) mayMove(ctx context.Context, r *jobRank) (err error) {
	if r.state, err = r.Status(ctx, answerTime); err == nil && r.state.Stays != "" {
		err = cuda.Refuse(cuda.NotSupported, "%s", readable.Printable(r.state.Stays))
	}
	return cmp.Or(err, j.complete(r.state))
}

// routes finds the ways of processes that move together, and refuses what cannot be. One that is on other GPUs alone
// stays there, and pauses with the others.
func (m *moving) routes(j *job) error {
	err := j.each(func(r *jobRank) (err error) {
		r.way, err = m.route(r.Peer, r.state, r.at == checkpoint.Checkpointed)
		return err
	})
	stays := func(r *jobRank) bool { return errors.Is(r.err, errElsewhere) || errors.Is(r.err, errThere) }
	stay := j.those(stays)
	if len(stay) == len(j.ranks) {
		return err
	}
	for _, r := range stay {
		r.err = nil
	}
	if err = j.failed(); err == nil {
		err = m.fit(j)
	}
	return err
}

// fit refuses what has no room, and divides the room that is left among the contents: all wait there at once.
func (m *moving) fit(j *job) error {
	free, need := map[string]uint64{}, map[string]uint64{}
	each := func(do func(leg *leg)) {
		for _, r := range j.ranks {
			for i := range r.way.legs {
				do(&r.way.legs[i])
			}
		}
	}
	each(func(leg *leg) { free[leg.To], need[leg.To] = leg.Free, need[leg.To]+leg.Bytes })
	each(func(leg *leg) { free[leg.From] += leg.leaves })
	var err error
	each(func(leg *leg) {
		if leg.Free = uint64(max(0, int64(free[leg.To])-m.taken[leg.To])); leg.Free < need[leg.To] {
			err = cuda.Refuse(cuda.OutOfMemory, "GPU %d has %s free, and %s are needed there", leg.to,
				readable.Bytes(leg.Free), readable.Bytes(need[leg.To]))
		}
	})
	if err != nil {
		return err
	}
	each(func(leg *leg) {
		if leg.near {
			leg.Room = leg.Free - need[leg.To]
			leg.Room = min(leg.Room-min(leg.Room, leg.spare), leg.Bytes) // or the restore would find no room
			need[leg.To] += leg.Room
		}
	})
	for _, r := range j.ranks {
		for _, leg := range r.way.legs {
			r.way.toward[leg.From] = stats.Destination{Device: leg.To, Room: leg.Room}
		}
	}
	return nil
}
