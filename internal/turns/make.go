package turns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

const (
	soonest, latest = 10 * time.Millisecond, 250 * time.Millisecond // between looks at the processes
	firstLook       = Grace + time.Millisecond                      // the next one then finds those that have become idle
	idleWithin      = 100 * time.Millisecond                        // for what a process without work may still compute
	dyingTime       = time.Second                                   // in which the driver frees a dead process's memory
	triesMost       = 10                                            // to pause what gives nothing
)

// longest is how long a process that is stopped may take to answer.
const longest = control.MaxSeconds * time.Second

// maker makes room for the memory that one process waits for. It may be killed at any moment. The processes that it has
// paused then resume by themselves (control.SteerRequest.Yield), and the waiting process starts another maker.
type maker struct {
	pid     int
	process *client.Conn
	refused map[int]string    // processes that cannot be paused, and why
	busy    map[int]time.Time // processes that cannot be paused before this time
	stayed  map[int]int       // how often a process could not give its memory, for a reason that may pass
	silent  bool              // some processes that listen do not answer
	comes   coming            // what the process takes back while others still give it away
	reserve uint64            // bytes of the reserve that no pause can keep free
	never   time.Time         // since when there would never be enough room, or zero if there would be
}

// MayTake returns how many bytes of a device a process may take: those that are free, and those that others can lend now,
// without the reserve. The process itself has seen free bytes of total. What others report comes from one look at them,
// because memory that changes hands between two looks would count twice.
func MayTake(pid int, uuid string, free, total uint64) uint64 {
	r := newMaker(pid)
	found := fleet.Ask(group.AnswerTime) // the process keeps the answer, so it is worth a wait for a slow neighbour
	device, all := r.sharers(uuid, found)
	if device.Reserve > 0 { // some process has seen it
		free = device.Free
	}
	var lend []Part
	for _, p := range all {
		if p.ID == pid || p.Pinned || p.Held() == 0 {
			continue
		}
		if with := append(lend, Part{ID: p.ID}); !tight(found) || r.budget(with, found, map[int]string{}) {
			lend = with
			free += p.Held()
		}
	}
	free = min(free, total)
	return free - min(free, stats.Reserve(total))
}

// MakeRoom returns when there is room for what a process waits for, with the bytes of the reserve that no pause can
// keep free. Errors: cuda.OutOfMemory, wrapped, if there never will be room; client.ErrUnreachable.
func MakeRoom(pid int) (reserve uint64, err error) {
	r := newMaker(pid)
	err = r.makeRoom()
	return r.reserve, err
}

func newMaker(pid int) *maker {
	return &maker{pid: pid, refused: map[int]string{}, busy: map[int]time.Time{}, stayed: map[int]int{}}
}

func (r *maker) makeRoom() error {
	process, err := client.Dial(r.pid)
	if err != nil {
		return err
	}
	defer process.Close()
	r.process = process
	for wait := firstLook; ; wait = min(wait+wait/16, latest) {
		done, next, err := r.step()
		if done || err != nil {
			return err
		}
		time.Sleep(max(min(wait, next), soonest))
	}
}

// step does what comes next under the locks of the devices that the process needs, and returns when to look again.
// Yielded memory is resumed only under these locks, and only if a thread waits for it. Otherwise the resume would take
// the room that is being made for other processes.
func (r *maker) step() (done bool, next time.Duration, err error) {
	state, err := r.process.Status(context.Background(), longest) // a stopped process answers when it goes on
	if err != nil {
		return false, 0, err
	}
	if state.Share == nil {
		return false, 0, errors.New("tms run --share did not start it")
	}
	wanted := needsOf(state)
	maps.DeleteFunc(wanted, func(uuid string, need uint64) bool { return need == 0 && uuid == "" })
	unlock, err := group.LockDevices(context.Background(), slices.Collect(maps.Keys(wanted)))
	if err != nil { // the allocation fails
		return false, 0, fmt.Errorf("%w%.0w", err, cuda.OutOfMemory)
	}
	defer unlock()
	uuids := slices.Sorted(maps.Keys(wanted))
	found := fleet.Ask(time.Second)
	at := slices.IndexFunc(found, func(p fleet.Process) bool { return p.PID == r.pid && p.Error == "" && p.Share != nil })
	if at < 0 {
		return false, soonest, nil // it does not answer now
	}
	if found[at].Share.Waited < 0 {
		return true, 0, nil // the process has the memory, or no longer wants it
	}
	r.silent = silence(found)
	r.comes = coming{process: r.process, uuid: r.comesOn(uuids, found, at)}
	defer func() { _, _ = r.comes.end(false) }()
	for uuid, need := range needsOf(found[at].ProcessState) {
		if need > 0 && !slices.Contains(uuids, uuid) {
			return false, soonest, nil
		}
	}
	for _, uuid := range uuids {
		ready, wait, err := r.makeOn(uuid, found)
		if err != nil || !ready {
			return false, wait, err
		}
	}
	if reply, err := r.comes.end(true); err == nil && reply.OK {
		return true, 0, nil
	}
	resume := control.SteerRequest{Op: control.Undo, Yield: true}
	reply, err := group.WhileRunning(context.Background(), r.process, resume, latest, latest) // while the devices are locked
	if err == nil && !reply.OK && reply.Code == int(cuda.OutOfMemory) {
		return false, soonest, nil // a process that does not share has taken it, or one that grows
	}
	return true, 0, group.Failure(reply, err)
}

// makeOn makes room on one device, and reports whether there is enough. If not, it returns when to look again.
func (r *maker) makeOn(uuid string, found []fleet.Process) (ready bool, next time.Duration, err error) {
	device, all := r.sharers(uuid, found)
	at := slices.IndexFunc(all, func(p Process) bool { return p.ID == r.pid })
	if at < 0 || all[at].Need == 0 {
		return true, 0, nil
	}
	decision := Decide(device, all, r.pid)
	if decision.Never && !moves(uuid, found) {
		return false, latest, r.refuse(uuid, device, all, found)
	}
	r.never = time.Time{} // it was for a moment only
	if decision.Never || decision.Wait > 0 {
		return false, decision.Wait, nil
	}
	if len(decision.Pause) == 0 && device.Free < all[at].Need+device.Reserve {
		r.reserve = device.Reserve
	}
	r.comes.leaves = leaves(device, all, all[at].Need, decision.Pause)
	ready, err = r.pauseAll(decision.Pause, found)
	return ready, soonest, err
}

// refuse returns an error that says why there is no room, or nil while that may change.
func (r *maker) refuse(uuid string, device Device, all []Process, found []fleet.Process) error {
	if r.never.IsZero() {
		r.never = time.Now()
	}
	need, lent := r.short(all)
	if _, patience := r.hope(uuid, device, all, found); time.Since(r.never) < patience {
		return nil
	}
	var why []string
	for pid, words := range r.refused {
		why = append(why, fmt.Sprintf("; %d cannot be paused: %s", pid, words))
	}
	slices.Sort(why)
	return fmt.Errorf("%s are needed, %s are free and others could lend %s%s%.0w", readable.Bytes(need),
		readable.Bytes(device.Free), readable.Bytes(lent), strings.Join(why, ""), cuda.OutOfMemory)
}

// hope says what may still make room that no pause makes, and for how long the maker waits for that; "" for nothing.
// Memory that no process accounts for may belong to a dead process, from which the driver takes it after a while.
func (r *maker) hope(uuid string, device Device, all []Process, found []fleet.Process) (of string, within time.Duration) {
	need, lent := r.short(all)
	switch {
	case moves(uuid, found):
		return "a pause or a resume to end", longest
	case r.silent:
		return "processes that do not answer", group.AnswerTime
	case device.Free+lent+unexplained(uuid, found) >= need:
		return "memory that no process here accounts for, such as that of a process that has just ended", dyingTime
	}
	return "", 0
}

// short returns the bytes that the process waits for, and those that pauses of others would free.
func (r *maker) short(all []Process) (need, lent uint64) {
	for _, p := range all {
		if p.ID == r.pid {
			need = p.Need
		} else if !p.Pinned {
			lent += p.Held()
		}
	}
	return need, lent
}

// silence reports whether some processes that listen do not answer.
func silence(found []fleet.Process) bool {
	return slices.ContainsFunc(found, func(p fleet.Process) bool { return p.Error != "" && !p.Absent })
}

// moves reports whether a process is in the middle of a pause or resume on a device, which does not count yet.
func moves(uuid string, found []fleet.Process) bool {
	return slices.ContainsFunc(found, func(p fleet.Process) bool {
		return slices.ContainsFunc(p.Stats.Devices, func(d stats.Device) bool { return d.UUID == uuid && d.Progress != nil })
	})
}

// unexplained returns the bytes of a device in use that no process here accounts for, beside some for their contexts.
func unexplained(uuid string, found []fleet.Process) (bytes uint64) {
	var explained uint64
	for _, p := range found {
		for _, d := range p.Stats.Devices {
			if d.UUID == uuid {
				bytes = max(bytes, d.TotalBytes-d.FreeBytes)
				explained += d.TotalBytes / 100
				for _, tag := range d.Tags {
					explained += tag.PhysicalBytes
				}
			}
		}
	}
	return bytes - min(bytes, explained)
}
