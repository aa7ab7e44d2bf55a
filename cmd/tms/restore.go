package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/backoff"
	"tms/internal/checkpoint"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/nvml"
	"tms/internal/readable"
	"tms/vmm/cuda"
)

// A restore for which the driver finds too little memory loses the process (checkpoint.ErrLost). So the command that
// makes a checkpoint measures what the driver takes, and notes it with the process; and each restore looks, just before,
// whether that much is free, under the locks that all commands take before they take memory. What other programs take
// between the look and the restore is out of reach: so nothing that takes time stands between the two.

// lost is the error of a process that the driver can never give back.
type lost struct {
	pid   int
	words string
}

func (l *lost) Error() string { return l.words }

// isLost reports whether an error, which may be another process's, says that this process is lost.
func isLost(pid int, err error) bool {
	l, ok := errors.AsType[*lost](err)
	return ok && l.pid == pid
}

// lose notes with a process that it is lost, for later commands, and returns that as an error.
func lose(pid int, cause error, part *control.Driver) error {
	l := &lost{pid, fmt.Sprintf("%v. The process is lost: what it had on its GPUs is gone, and its CUDA calls wait for good. "+
		"End it: kill -9 %d", cause, pid)}
	noted := control.Driver{Devices: []control.DriverBytes{}, Lost: l.words}
	if part != nil {
		noted.Devices = part.Devices
	}
	if process, err := client.Dial(pid); err == nil { // else only this command says so
		_ = note(process, noted)
		process.Close()
	}
	return l
}

func note(process *client.Conn, part control.Driver) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return ask(ctx, process, control.Request{Op: control.Note, Driver: &part})
}

// untried refuses the driver's checkpoint of a process on a driver whose restore has not been tried.
func untried() error {
	if checkpoint.Overridden() {
		return nil
	}
	library, err := fleet.NVML()
	version := ""
	if err == nil {
		version, err = library.DriverVersion()
	}
	why := ""
	if err != nil {
		why = fmt.Sprintf("%v, so tms cannot see whether there is room for the restore", err)
	} else {
		why = checkpoint.Untried(version)
	}
	if why == "" {
		return nil
	}
	return cuda.Refuse(cuda.NotSupported, "%s; %s=1 takes the risk", why, checkpoint.Override)
}

// takenBy returns what the driver's checkpoint has taken of a process from one GPU, as NVML shows the GPU before and
// after. In a PID namespace that is not NVML's, the process is the only one that is gone; or where NVML shows none, or
// several have gone, what is no longer used was the process's.
func takenBy(before, after nvml.Device) uint64 {
	var gone []nvml.Process
	for _, p := range before.Processes {
		if !slices.ContainsFunc(after.Processes, func(o nvml.Process) bool { return o.PID == p.PID }) {
			gone = append(gone, p)
		}
	}
	if len(gone) == 1 && gone[0].Known {
		return gone[0].UsedBytes
	}
	return before.UsedBytes - min(before.UsedBytes, after.UsedBytes)
}

// take makes the driver checkpoint a process that is locked, and notes what it took. Before, it notes the most that
// this can be, for the case that this command is killed in between.
func (r *jobRank) take() error {
	shown, err := fleet.GPUs()
	if err != nil && len(shown) == 0 {
		if !checkpoint.Overridden() {
			return err
		}
		return r.driver.Checkpoint(r.PID, driverTime)
	}
	part, sure := control.Driver{Devices: []control.DriverBytes{}}, fleet.SameNumbers()
	on := map[string]bool{}
	for _, d := range fleet.PartsOf(r.state) {
		on[d.UUID] = true
	}
	for _, gpu := range shown {
		bytes, known := fleet.UsedBy(r.Peer, gpu)
		if sure = sure && (known || !on[gpu.UUID]); known && sure || on[gpu.UUID] {
			part.Devices = append(part.Devices, control.DriverBytes{UUID: gpu.UUID, Bytes: bytes})
		}
	}
	if sure {
		if err = note(r.Conn, part); err != nil {
			return err
		}
		return r.driver.Checkpoint(r.PID, driverTime)
	}
	unlock, err := turn(context.Background(), needOf(&part, nil)) // what is no longer used is then this process's
	if err != nil {
		return err
	}
	defer unlock()
	shown, _ = fleet.GPUs()
	before := map[string]nvml.Device{}
	for _, gpu := range shown {
		before[gpu.UUID] = gpu
	}
	for i := range part.Devices {
		part.Devices[i].Bytes = before[part.Devices[i].UUID].UsedBytes
	}
	if err = note(r.Conn, part); err != nil {
		return err
	}
	if err = r.driver.Checkpoint(r.PID, driverTime); err != nil {
		return err
	}
	shown, _ = fleet.GPUs()
	for _, after := range shown {
		for i := range part.Devices {
			if d := &part.Devices[i]; d.UUID == after.UUID {
				d.Bytes = takenBy(before[d.UUID], after)
			}
		}
	}
	return note(r.Conn, part)
}

// needed is how many bytes a restore needs, by the UUID of the GPU.
type needed map[string]uint64

// needOf returns what a restore of the driver's part needs where the pairs lead.
func needOf(part *control.Driver, pairs []checkpoint.Pair) needed {
	n := needed{}
	for _, d := range part.Devices {
		to := d.UUID
		for _, pair := range pairs {
			if pair.Old == d.UUID {
				to = pair.New
			}
		}
		n[to] += d.Bytes
	}
	return n
}

// look returns an error unless all of it is free, and a margin. Errors: cuda.OutOfMemory, wrapped; NVML's.
func (n needed) look() error {
	library, err := fleet.NVML()
	var shown []nvml.Device
	if err == nil {
		shown, err = library.Memory()
	}
	for _, uuid := range slices.Sorted(maps.Keys(n)) {
		at := slices.IndexFunc(shown, func(d nvml.Device) bool { return d.UUID == uuid })
		if n[uuid] == 0 {
			continue
		}
		var wanted uint64
		if at >= 0 {
			wanted = n[uuid] + checkpoint.Margin(shown[at].TotalBytes)
		}
		switch {
		case at < 0 && checkpoint.Overridden():
		case at < 0 && err != nil:
			return fmt.Errorf("whether there is room for the restore cannot be seen: %w; %s=1 restores it anyway", err,
				checkpoint.Override)
		case at < 0:
			return cuda.Refuse(cuda.InvalidValue, "NVML does not show %s here, on which the process was, so whether there "+
				"is room for the restore cannot be seen; %s=1 restores it anyway", uuid, checkpoint.Override)
		case at >= 0 && shown[at].FreeBytes < wanted:
			return cuda.Refuse(cuda.OutOfMemory, "other processes have the memory that the driver needs for it: GPU %d has "+
				"%s free, and %s are needed (%s that the driver took, and a margin)", shown[at].Index,
				readable.Bytes(shown[at].FreeBytes), readable.Bytes(wanted), readable.Bytes(n[uuid]))
		}
	}
	return nil
}

// short reports whether an error says that memory of a device was short.
func short(err error) bool { return code(err) == int(cuda.OutOfMemory) }

// turn takes the locks under which memory of these GPUs is taken, in turn. It waits for them until ctx ends. A terminal can
// no longer stop this command, because others would wait for it.
func turn(ctx context.Context, of needed) (unlock func(), err error) {
	signal.Ignore(unix.SIGTSTP)
	type locks struct {
		unlock func()
		err    error
	}
	taken := make(chan locks, 1)
	go func() {
		unlock, err := lockAll(of)
		taken <- locks{unlock, err}
	}()
	select {
	case l := <-taken:
		return l.unlock, l.err
	case <-ctx.Done():
		go func() {
			if l := <-taken; l.err == nil {
				l.unlock()
			}
		}()
		return nil, ctx.Err()
	}
}

func lockAll(of needed) (unlock func(), err error) {
	var locked []func()
	unlock = func() {
		for _, unlock := range locked {
			unlock()
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(of)) { // so that two never wait for each other
		one, err := lock(uuid)
		if err != nil {
			unlock()
			return nil, err
		}
		locked = append(locked, one)
	}
	return unlock, nil
}

// takeAgain has processes do what takes memory, under the locks of the devices where they have some. Once one of them is
// stopped the locks end, because others would wait for it. An undo or the end of a move is never left out: where the locks
// cannot be had, it is made without.
func takeAgain(ranks []*jobRank, do func()) {
	of := needed{}
	for _, r := range ranks {
		for d := range r.state.Tags() {
			of[d.UUID] = 0
		}
		for _, leg := range r.way.legs {
			of[leg.From], of[leg.To] = 0, 0
		}
	}
	unlock, err := turn(context.Background(), of)
	if err != nil {
		do()
		return
	}
	unlock = sync.OnceFunc(unlock)
	defer unlock()
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(latest):
				if slices.ContainsFunc(ranks, func(r *jobRank) bool { return r.Stopped() }) {
					unlock()
					return
				}
			}
		}
	}()
	do()
}

// undoInTurn sends ranks an undo, all at once. One that waits for the memory of another process gives up soon, and is
// asked again when it no longer has the locks.
func (j *job) undoInTurn(ctx context.Context, did func(*jobRank, control.Reply, error) error) {
	undo := control.Request{Op: control.Undo, Wait: leastTry.Seconds()}
	var mutex sync.Mutex
	late := &job{}
	takeAgain(j.those(func(r *jobRank) bool { return r.Conn != nil }), func() {
		_ = j.each(func(r *jobRank) error {
			reply, err := r.Do(ctx, undo)
			if err == nil && reply.Code == int(cuda.NotReady) {
				mutex.Lock()
				defer mutex.Unlock()
				late.ranks = append(late.ranks, r)
				return nil
			}
			return did(r, reply, err)
		})
	})
	undo.Wait = 0
	_ = late.each(func(r *jobRank) error {
		reply, err := r.Do(ctx, undo)
		return did(r, reply, err)
	})
}

// asTheProcessSays is a wait for memory that lasts as long as the process's own resumes wait.
const asTheProcessSays = -1

// restore makes the driver give a checkpointed process back, there where the pairs lead, once there is room. It waits
// for that. Errors: *lost; cuda.OutOfMemory, wrapped, if there is no room: then nothing has changed.
func restore(ctx context.Context, driver *checkpoint.Driver, pid int, wait time.Duration,
	pairs ...checkpoint.Pair) error {
	start := time.Now()
	part, own, err := driversPart(pid)
	if wait == asTheProcessSays {
		wait = own
	}
	switch {
	case part != nil && part.Lost != "":
		return &lost{pid, part.Lost}
	case part == nil && checkpoint.Overridden():
		part = &control.Driver{}
	case part == nil:
		why := "no tms that paused it has noted it"
		if err != nil {
			why = err.Error()
		}
		return cuda.Refuse(cuda.NotSupported, "%s", notNoted(why))
	}
	need := needOf(part, pairs)
	driver.Prepare() // which takes time, so it comes before the look
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 100 * time.Millisecond}); ; {
		err := restoreInTurn(ctx, driver, pid, need, pairs)
		if errors.Is(err, checkpoint.ErrLost) {
			return lose(pid, fmt.Errorf("%w: another program took the memory after tms had seen it free (%s)", err,
				checkpoint.Risk()), part)
		}
		if !short(err) || !retry.Sleep(start.Add(wait)) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// notNoted says what a user can do about a restore whose need is not known.
func notNoted(why string) string {
	return fmt.Sprintf("how much memory the driver needs for it is not known (%s), and with too little the driver would "+
		"lose it. Give its GPUs room, then run this again with %s=1", why, checkpoint.Override)
}

func restoreInTurn(ctx context.Context, driver *checkpoint.Driver, pid int, need needed,
	pairs []checkpoint.Pair) error {
	room, err := checkpoint.Look(func() (func(), error) { return turn(ctx, need) }, func() error {
		if state, err := driver.State(pid); err != nil {
			return err
		} else if state != checkpoint.Checkpointed { // whose turn came before has given it back, and so the room is taken
			return fmt.Errorf("the driver has it %v by now, because another command was first%.0w", state, cuda.IllegalState)
		}
		return need.look()
	})
	if err != nil {
		return err
	}
	defer room.End()
	return driver.Restore(room, pid, driverTime, pairs...)
}

// driversPart asks a process what the driver has of it, as noted there, and how long its resumes wait. It uses a
// separate connection, because the process may not answer.
func driversPart(pid int) (part *control.Driver, wait time.Duration, err error) {
	process, err := client.Dial(pid)
	if err != nil {
		return nil, 0, err
	}
	defer process.Close()
	state, err := process.Status(context.Background(), answerTime)
	return state.Driver, control.Seconds(state.ResumeWait), err
}

// resumeInTurn sends a process a resume, again and again while memory is short, each time under the locks of the
// devices: so no restore finds the memory gone that it has seen free. carried is the context of a try that has begun.
func (o *outcome) resumeInTurn(ctx, carried context.Context, process *client.Conn, request control.Request,
	state control.ProcessState) error {
	need := needed{}
	for d, tag := range state.Tags() {
		if tag.PausedBytes > 0 {
			need[d.UUID] += tag.PausedBytes
		}
	}
	wait := request.Wait
	if wait == 0 {
		wait = state.ResumeWait
	}
	until := time.Now().Add(control.Seconds(wait))
	atOnce := request
	atOnce.Turn, atOnce.Wait = true, 0
	if wait > 0 {
		atOnce.Wait = time.Millisecond.Seconds() // the process then says that it waits, and all tries are one transition
	}
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 250 * time.Millisecond}); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		unlock, err := turn(ctx, need)
		if err != nil {
			return err
		}
		if !time.Now().Before(until) {
			atOnce.Wait = 0 // the last try, so its failure is that of the whole wait
		}
		err = o.doWhileRunning(carried, process, atOnce)
		unlock()
		if code(err) == int(cuda.NotReady) { // waiting for other processes' memory takes none of this device's
			before := *o
			err = o.do(carried, process, request)
			o.Bytes, o.Imported = o.Bytes+before.Bytes, o.Imported+before.Imported
		}
		if !short(err) || !retry.Sleep(until) {
			return err
		}
	}
}

// doWhileRunning is do, but gives up a process that is stopped, which would keep the locks.
func (o *outcome) doWhileRunning(ctx context.Context, process *client.Conn, request control.Request) error {
	reply, err := whileRunning(ctx, process, request, latest, latest)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.Canceled) {
		err = client.Unreachable("it does not answer (stopped?)")
	}
	return o.note(reply, err)
}
