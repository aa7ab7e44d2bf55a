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
	"time"

	"github.com/spf13/cobra"

	"tms/internal/checkpoint"
	"tms/internal/control"
	"tms/internal/control/client"
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
	pauses   pausing
	from, to string
	pairs    []string // OLD=NEW
	turn     sync.Mutex
	taken    map[string]int64 // by UUID: what the processes before will take, in a dry run
}

// moved is what a move has done, for its outcome.
type moved struct {
	Legs       legs    `json:"gpus"`
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
			m.pauses.request = control.Request{Op: control.Pause, Everything: true, SaveAll: true, Force: force,
				Timeout: new(timeout.Seconds())}
			if m.dryRun {
				m.taken, m.before = map[string]int64{}, m.begin
				return m.plan(command, control.Pause, force, arguments)
			}
			return m.run(command, "moving", arguments, m.move, func(o outcome) string {
				if o.Move == nil {
					return o.nothing("move")
				}
				text := fmt.Sprintf("moved %v in %.2f s (pause %.2f, checkpoint %.2f, restore %.2f, resume %.2f)",
					o.Move.Legs, o.Seconds, o.Move.Pause, o.Move.Checkpoint, o.Move.Restore, o.Move.Resume)
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
		if err != nil {
			return nil, nil, err
		}
		new, err := find(gpus, other)
		if err != nil {
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

// route finds the way of a process, and refuses what the driver would. here is the process's number.
func (m *moving) route(here int, state control.ProcessState) (r route, err error) {
	shown, err := gpus()
	if err != nil {
		return r, fmt.Errorf("NVML does not tell which GPUs there are: %w", err)
	}
	found := []process{{ProcessState: state, here: here}}
	measure(found, shown)
	need, used := map[string]uint64{}, map[string]uint64{}
	for _, d := range found[0].Bytes {
		if d.Device >= 0 || d.UsedBytes > 0 {
			need[d.UUID], used[d.UUID] = max(d.UsedBytes, d.NamedBytes), d.UsedBytes
		}
	}
	for _, d := range state.Stats.Devices {
		for _, tag := range d.Tags {
			if state.Stats.Everything { // a resume takes what is paused
				need[d.UUID] += tag.PausedBytes
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
			way := leg{From: old.UUID, To: new.UUID, Bytes: need[old.UUID], from: old.Index, to: new.Index,
				Free: uint64(max(0, int64(new.FreeBytes+used[new.UUID])-m.taken[new.UUID]))}
			for _, d := range state.Stats.Devices {
				if d.UUID == old.UUID && slices.Contains(d.Peers, new.UUID) {
					way.Room = way.Free - min(way.Free, way.Bytes)
				}
			}
			r.legs = append(r.legs, way)
			r.toward[old.UUID] = stats.Destination{Device: new.UUID, Room: way.Room}
		}
	}
	if len(r.legs) == 0 {
		return r, fmt.Errorf("%w: it is on %s", errThere, listed(on))
	}
	for _, leg := range r.legs {
		if leg.Free < leg.Bytes {
			return r, cuda.Refuse(cuda.OutOfMemory, "GPU %d has %s free, and %s are needed there", leg.to,
				readable.Bytes(leg.Free), readable.Bytes(leg.Bytes))
		}
	}
	return r, nil
}

// movable returns the driver, and in which state it has the process. Errors: the driver's, and what the process says.
func movable(pid int, state control.ProcessState) (*checkpoint.Driver, checkpoint.State, error) {
	driver, err := checkpoint.Open()
	if err == nil {
		err = driver.CanMove()
	}
	if err != nil {
		return nil, checkpoint.Failed, err
	}
	at, err := driver.State(pid)
	if err == nil && state.Stays != "" {
		err = cuda.Refuse(cuda.NotSupported, "%s", strings.TrimSuffix(state.Stays, otherwise))
	}
	return driver, at, err
}

// halfway reports whether a command was killed after the driver took the process, or before it resumed.
func halfway(at checkpoint.State, state control.ProcessState) bool {
	return at != checkpoint.Checkpointed && (at != checkpoint.Running || state.Stats.Everything)
}

// begin begins a plan with where a process would go, and reports whether it would.
func (m *moving) begin(made *plan, process *client.Conn, state control.ProcessState) bool {
	made.Op = control.Move
	_, at, err := movable(made.PID, state)
	var r route
	if err == nil && halfway(at, state) {
		err = fmt.Errorf("another command has paused half of it; tms resume %d or the move itself ends that", made.PID)
	}
	if err == nil {
		r, err = m.route(process.Peer, state)
	}
	if m.all && errors.Is(err, errElsewhere) {
		return false
	}
	made.Legs = r.legs
	for _, leg := range r.legs {
		m.taken[leg.To] += int64(leg.Bytes)
		m.taken[leg.From] -= int64(leg.Bytes)
	}
	if err != nil {
		made.Error = err.Error()
	}
	return err == nil
}

// move moves one process, after those before it, so that host memory need hold the contents of only one.
func (m *moving) move(ctx context.Context, pid int) outcome {
	m.turn.Lock()
	defer m.turn.Unlock()
	start, o := time.Now(), outcome{PID: pid}
	if err := ctx.Err(); err != nil {
		return ended(o, err)
	}
	process, state, err := reach(ctx, pid)
	if err != nil {
		return ended(o, err)
	}
	defer process.Close()
	driver, at, err := movable(pid, state)
	if err != nil {
		return ended(o, err)
	}
	back := control.Request{Op: control.Resume, Everything: true}
	ends := halfway(at, state)
	if ends {
		if o = (resuming{request: back}).resume(ctx, pid); !o.OK {
			return o
		}
		if state, err = process.Status(ctx, answerTime); err != nil {
			return ended(o, err)
		}
	}
	r, err := m.route(process.Peer, state)
	if m.all && errors.Is(err, errElsewhere) {
		o.Note, err = err.Error(), nil
	} else if ends && errors.Is(err, errThere) {
		o.Note, err = "another command was killed, and this one has ended its move; "+err.Error(), nil
	}
	if err != nil || o.Note != "" {
		return ended(o, err)
	}
	done, part := moved{Legs: r.legs}, time.Now()
	passes := func(seconds *float64) {
		*seconds = time.Since(part).Seconds()
		part = time.Now()
	}
	var paused outcome
	driver.Prepare()
	out := at == checkpoint.Checkpointed
	if !out {
		back = control.Request{Op: control.Undo} // of what this pause takes, and no more
		request := m.pauses.request
		request.Toward = r.toward
		if err = paused.do(ctx, process, request); err != nil {
			return ended(o, err)
		}
		passes(&done.Pause)
		if state, err = process.Status(ctx, answerTime); err == nil && state.Stays != "" {
			err = cuda.Refuse(cuda.NotSupported, "%s", state.Stays)
		}
		if err == nil {
			err = m.pauses.lockAndCheckpoint(ctx, driver, pid)
		}
		passes(&done.Checkpoint)
	}
	if err == nil {
		err = driver.Restore(pid, driverTime, r.there...)
	}
	if err != nil && out {
		return ended(o, fmt.Errorf("%w; it stays paused", err))
	} else if err != nil {
		return ended(o, m.pauses.undone(driver, process, pid, err, asBefore))
	}
	_, err = giveBack(context.Background(), driver, pid, 0)
	if passes(&done.Restore); err == nil {
		err = o.do(context.Background(), process, back)
	}
	if err != nil && out {
		return ended(o, fmt.Errorf("%w; it was moved %v, and tms resume %d tries again", err, r.legs, pid))
	} else if err != nil {
		return ended(o, m.returned(driver, process, pid, &r, err))
	}
	passes(&done.Resume)
	o.Seconds, o.WithoutContents, o.NCCL = time.Since(start).Seconds(), paused.WithoutContents,
		cmp.Or(o.NCCL, paused.NCCL)
	o.MovedBytes, o.Move = paused.MovedBytes, &done
	return ended(o, nil)
}

// returned takes a process that cannot go on where it went back to where it was, and says what came of that.
func (m *moving) returned(driver *checkpoint.Driver, process *client.Conn, pid int, r *route, cause error) error {
	ctx, now := context.Background(), asBefore
	at, err := driver.State(pid)
	var state control.ProcessState
	if err == nil {
		state, err = process.Status(ctx, answerTime)
	}
	if err == nil && !state.Stats.Everything {
		err = ask(ctx, process, m.pauses.request)
	}
	if err == nil && at == checkpoint.Running {
		err = m.pauses.lockAndCheckpoint(ctx, driver, pid)
	} else if err == nil {
		err = checkpointed(ctx, driver, pid)
	}
	if err == nil {
		err = driver.Restore(pid, driverTime, r.back...)
	}
	if err != nil {
		cause, now = fmt.Errorf("%w; it cannot go back either (%w)", cause, err), fmt.Sprint("it goes on moved ", r.legs)
	}
	return m.pauses.undone(driver, process, pid, cause, now)
}
