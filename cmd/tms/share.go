package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/readable"
	"tms/internal/share"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

const (
	soonest, latest = 10 * time.Millisecond, 250 * time.Millisecond // between looks at the processes
	firstLook       = share.Grace + time.Millisecond                // the next one then finds those that have become idle
	idleWithin      = 100 * time.Millisecond                        // for what a process without work may still compute
	dyingTime       = time.Second                                   // in which the driver frees a dead process's memory
	triesMost       = 10                                            // to pause what gives nothing
)

// roomFor is one tms share, which makes room for the memory that a process waits for. It may be killed at any moment.
// The processes that it has paused then resume by themselves (control.Request.Yield), and the waiting process starts
// another tms share.
type roomFor struct {
	pid     int
	process *client.Conn
	refused map[int]string    // processes that cannot be paused, and why
	busy    map[int]time.Time // processes that cannot be paused before this time
	kept    map[int]int       // how often processes kept their memory for a reason that may pass
	silent  bool              // some processes that listen do not answer
	reserve uint64            // bytes of the reserve that no pause can keep free
	never   time.Time         // since when there would never be enough room, or zero if there would be
}

func shareCommand() *cobra.Command {
	var explain, report bool
	command := &cobra.Command{
		Use:   "share PID",
		Short: "Make room for a process that waits for memory",
		Long: `Pauses others of tms run --share until there is room for what a process waits
for, and resumes what they had paused of it. Such a process runs this itself.`,
		Example:           `  tms share 12345 --explain`,
		ValidArgsFunction: completeProcesses,
		RunE: func(command *cobra.Command, arguments []string) error {
			pids, err := processes(arguments)
			if err != nil || len(pids) != 1 {
				return cmp.Or(err, errors.New("name one process by its number (tms ps lists them)"))
			}
			r := roomFor{pid: pids[0], refused: map[int]string{}, busy: map[int]time.Time{}, kept: map[int]int{}}
			if explain {
				return explainTo(command.OutOrStdout(), r.pid)
			}
			signal.Ignore(unix.SIGTSTP) // which a terminal sends with the process: it may have locked a device
			err = r.make()
			o := group.Ended(group.Outcome{PID: r.pid}, err)
			if report {
				fmt.Fprintf(command.OutOrStdout(), "%d %d\n%s", cuda.Code(err), r.reserve, o.Error)
				return nil
			}
			complain(command, o)
			return verdict([]group.Outcome{o})
		},
	}
	command.Flags().BoolVar(&explain, "explain", false, "only say what would be paused for it")
	command.Flags().BoolVar(&report, "report", false, "") // for libtms.so: "CODE RESERVE", and the error on the next line
	_ = command.Flags().MarkHidden("report")
	return command
}

// explainTo says what comes next for a process, and does nothing.
func explainTo(to io.Writer, pid int) error {
	found := fleet.Ask(group.AnswerTime)
	for _, p := range found {
		if p.PID == pid && p.Error == "" && p.Share != nil {
			words := cmp.Or(strings.Join(waitsOf(p, found), "; "), "waits for no memory")
			_, err := fmt.Fprintf(to, "%d: %s\n", pid, words)
			return err
		}
	}
	return fmt.Errorf("%d does not share its devices: start it with tms run --share", pid)
}

// make returns when there is room. Errors: cuda.OutOfMemory, wrapped, if there never will be; client.ErrUnreachable.
func (r *roomFor) make() error {
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
// Yielded memory is resumed only under these locks, and only if a thread waits for it. withoutEverything the resume would take
// the room that is being made for other processes.
func (r *roomFor) step() (done bool, next time.Duration, err error) {
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
	r.silent = slices.ContainsFunc(found, func(p fleet.Process) bool { return p.Error != "" && !p.Absent })
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
	resume := control.Request{Op: control.Undo, Yield: true}
	reply, err := group.WhileRunning(context.Background(), r.process, resume, latest, latest) // while the devices are locked
	if err == nil && !reply.OK && reply.Code == int(cuda.OutOfMemory) {
		return false, soonest, nil // a process that does not share has taken it, or one that grows
	}
	return true, 0, group.Failure(reply, err)
}

// makeOn makes room on one device, and reports whether there is enough. If not, it returns when to look again.
func (r *roomFor) makeOn(uuid string, found []fleet.Process) (ready bool, next time.Duration, err error) {
	device, all := r.sharers(uuid, found)
	at := slices.IndexFunc(all, func(p share.Process) bool { return p.ID == r.pid })
	if at < 0 || all[at].Need == 0 {
		return true, 0, nil
	}
	decision := share.Decide(device, all, r.pid)
	if decision.Never && !moves(uuid, found) {
		return false, latest, r.refuse(all[at].Need, device.Free, unexplained(uuid, found), all)
	}
	r.never = time.Time{} // it was for a moment only
	if decision.Never || decision.Wait > 0 {
		return false, decision.Wait, nil
	}
	if len(decision.Pause) == 0 && device.Free < all[at].Need+device.Reserve {
		r.reserve = device.Reserve
	}
	ready, err = r.pauseAll(decision.Pause, found)
	return ready, soonest, err
}

// refuse returns an error that says why there is no room, or nil while that may change. Memory that no process
// accounts for may belong to a dead process, so refuse waits a while for the driver to free it.
func (r *roomFor) refuse(need, free, unexplained uint64, all []share.Process) error {
	var lent uint64
	for _, p := range all {
		if p.ID != r.pid && !p.Pinned {
			lent += p.Held()
		}
	}
	patience := time.Duration(0)
	if r.silent {
		patience = group.AnswerTime // they may have memory to lend
	} else if free+lent+unexplained >= need {
		patience = dyingTime
	}
	if r.never.IsZero() {
		r.never = time.Now()
	}
	if time.Since(r.never) < patience {
		return nil
	}
	var why []string
	for pid, words := range r.refused {
		why = append(why, fmt.Sprintf("; %d cannot be paused: %s", pid, words))
	}
	slices.Sort(why)
	return fmt.Errorf("%s are needed, %s are free and others could lend %s%s%.0w", readable.Bytes(need),
		readable.Bytes(free), readable.Bytes(lent), strings.Join(why, ""), cuda.OutOfMemory)
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

// pause reports whether the process has given up its memory. Contents that would take host memory go to the place to,
// or to host memory if it is "".
func (r *roomFor) pause(part share.Part, to string) bool {
	process, err := client.Dial(part.ID)
	if err != nil {
		return false
	}
	defer process.Close()
	tags := make([]*string, max(1, len(part.Tags))) // one nil is all tags
	for i := range part.Tags {
		tags[i] = &part.Tags[i]
	}
	for _, tag := range tags {
		request := control.Request{Op: control.Pause, Tag: tag, SaveAll: true, Yield: true, To: to}
		if part.Idle {
			request.Idle, request.Timeout = new(share.Grace.Seconds()), new(idleWithin.Seconds())
		}
		reply, err := group.WhileRunning(context.Background(), process, request, latest, latest)
		switch {
		case err != nil:
		case reply.OK && reply.Bytes > 0:
			continue
		case reply.OK: // another client has paused it, or it has nothing that a pause frees
			r.keeps(part.ID, "a pause frees nothing")
		case reply.Code == int(cuda.OperatingSystem): // the host or its disk is full
			r.keeps(part.ID, reply.Error)
		case reply.Code == int(cuda.NotSupported):
			r.refused[part.ID] = reply.Error // for as long as this one waits
		default: // its device works, or it captures
			r.busy[part.ID] = time.Now().Add(idleWithin)
		}
		return false
	}
	return true
}

// keeps notes why a process keeps its memory. It counts as refused once that has not passed for a while.
func (r *roomFor) keeps(pid int, why string) {
	if r.kept[pid]++; r.kept[pid] > triesMost {
		r.refused[pid] = why
	}
	r.busy[pid] = time.Now().Add(idleWithin)
}

// sharers returns what the policy must know of a device, and of the processes that share it. What is free is the least
// that any process has seen since the lock was taken: the process itself may have no context there yet.
func (r *roomFor) sharers(uuid string, found []fleet.Process) (device share.Device, all []share.Process) {
	seenBy := 0
	for _, p := range found {
		at := slices.IndexFunc(p.Stats.Devices, func(d stats.Device) bool { return d.UUID == uuid })
		var seen stats.Device
		if p.Error == "" && at >= 0 {
			seen = p.Stats.Devices[at]
			if seenBy++; seenBy == 1 || seen.FreeBytes < device.Free {
				device = share.Device{Free: seen.FreeBytes, Reserve: stats.Reserve(seen.TotalBytes)}
			}
		}
		if p.Error != "" || p.Share == nil || p.Here != p.PID || at < 0 && needsOf(p.ProcessState)[uuid] == 0 {
			continue
		}
		_, refused := r.refused[p.PID]
		one := share.Process{ID: p.PID, Priority: p.Share.Priority, Ran: control.Seconds(p.Share.Ran),
			Grew: control.Seconds(p.Share.Grew), Grows: p.Share.Waited >= 0 && !p.Share.Resumes,
			AtLeast: control.Seconds(p.Share.AtLeast), Away: control.Seconds(p.Share.Away), Pinned: refused || !p.Gated,
			Busy: p.Stats.Capturing || p.Stats.Everything || p.Doing != "" || time.Now().Before(r.busy[p.PID]),
			Need: needsOf(p.ProcessState)[uuid], Waited: control.Seconds(p.Share.Waited)}
		if p.IdleSeconds != nil {
			one.Idle = control.Seconds(*p.IdleSeconds)
		}
		for _, tag := range seen.Tags {
			one.Tags = append(one.Tags, share.Tag{Name: tag.Tag, Bytes: tag.PhysicalBytes})
		}
		if out, back := seen.Pauses, seen.Resumes; out.Bytes > 0 && back.Bytes > 0 {
			each := out.Seconds/float64(out.Bytes) + back.Seconds/float64(back.Bytes)
			one.Price = control.Seconds(each * float64(one.Held()+one.Need))
		}
		all = append(all, one)
	}
	return device, all
}

// needsOf returns how many bytes a process waits for, by the UUID of the device.
func needsOf(state control.ProcessState) map[string]uint64 {
	needs := map[string]uint64{}
	if state.Share == nil || state.Share.Waited < 0 {
		return needs
	}
	needs[state.Share.UUID] = state.Share.Bytes
	for _, d := range state.Stats.Devices {
		var paused uint64
		for _, tag := range d.Tags {
			if paused += tag.PausedBytes; slices.Contains(state.Share.Yielded, tag.Tag) {
				needs[d.UUID] += tag.PausedBytes
			}
		}
		if state.Share.Resumes {
			needs[d.UUID] = min(needs[d.UUID], paused)
		}
	}
	return needs
}

// waitsOf says what a process waits for on each device, and for whom.
func waitsOf(p fleet.Process, found []fleet.Process) (lines []string) {
	needs := needsOf(p.ProcessState)
	for _, uuid := range slices.Sorted(maps.Keys(needs)) {
		r := roomFor{pid: p.PID}
		device, all := r.sharers(uuid, found)
		if needs[uuid] == 0 || !slices.ContainsFunc(all, func(p share.Process) bool { return p.ID == r.pid }) {
			continue
		}
		what := readable.Bytes(needs[uuid])
		if needs[uuid] == 1 { // a call of the driver's that does not say how much
			what = "memory"
		}
		lines = append(lines, fmt.Sprintf("%s; it has waited %.1f s for %s on %s, %s free",
			inWords(share.Decide(device, all, p.PID)), p.Share.Waited, what, readable.Printable(uuid),
			readable.Bytes(device.Free)))
	}
	return lines
}

func inWords(d share.Decision) string {
	var words []string
	for _, id := range d.For {
		words = append(words, fmt.Sprint(id))
	}
	others := cmp.Or(strings.Join(words, ", "), "others")
	switch {
	case d.Never:
		return "there will never be enough"
	case d.Wait > 0 && d.Wait < longest:
		return fmt.Sprintf("it waits for %s, at most %.2f s", others, d.Wait.Seconds())
	case d.Wait > 0:
		return "it waits until " + others + " can be paused"
	case len(d.Pause) == 0:
		return "there is room"
	}
	words = nil
	for _, part := range d.Pause {
		what := cmp.Or(readable.Printable(strings.Join(part.Tags, ", ")), "all")
		words = append(words, fmt.Sprintf("%s of %d", what, part.ID))
	}
	return "a pause of " + strings.Join(words, "; ") + " makes room"
}
