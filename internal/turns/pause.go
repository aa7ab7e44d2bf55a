package turns

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/vmm/cuda"
)

// All processes that take turns keep their contents in the host memory of one machine, whatever their devices. A pause
// takes it bit by bit, so two commands that look at the same time would both see it free.

// pauseAll pauses the parts if there is room for the contents of all of them. Unless there is plenty, one command at a
// time does so. It locks a device first, so two never wait for each other.
func (r *maker) pauseAll(parts []Part, found []fleet.Process) (done bool, err error) {
	to := map[int]string{}
	if len(parts) > 0 && tight(found) {
		unlock, err := group.Lock("host")
		if err != nil {
			return false, fmt.Errorf("%w%.0w", err, cuda.OutOfMemory)
		}
		defer unlock()
		if !r.budget(parts, fleet.Ask(time.Second), to) {
			return false, nil
		}
	}
	for i, part := range parts {
		if !r.pause(part, to[part.ID], i == len(parts)-1) {
			return false, nil
		}
	}
	return true, nil
}

// tight reports whether the contents of all devices together may find no room.
func tight(found []fleet.Process) bool {
	all := fleet.NodeBytes{}
	devices := map[string]bool{}
	for _, p := range found {
		for _, d := range p.Stats.Devices {
			if !devices[d.UUID] {
				devices[d.UUID] = true
				all.Add(d, d.TotalBytes)
			}
		}
	}
	return slices.ContainsFunc(found, func(p fleet.Process) bool {
		return p.Share != nil && fleet.NewHost(found).Available(&p, all) < all.Sum()
	})
}

// budget notes in to where contents go for which host memory has no room. It returns false if a process may not put
// them elsewhere.
func (r *maker) budget(parts []Part, found []fleet.Process, to map[int]string) bool {
	host := fleet.NewHost(found)
	for _, part := range parts {
		at := slices.IndexFunc(found, func(p fleet.Process) bool { return p.PID == part.ID && p.Share != nil })
		if at < 0 {
			return false // it does not answer now
		}
		needs := fleet.NodeBytes{}
		for d, tag := range found[at].Tags() {
			if part.Tags == nil || slices.Contains(part.Tags, tag.Tag) {
				needs.Add(d, tag.PauseHostBytes+tag.PauseWithoutContents)
			}
		}
		needed, room := needs.Sum(), host.Available(&found[at], needs)
		switch {
		case found[at].Share.Disk && (needed > room || r.stayed[part.ID] > 0): // only a pause finds out what sparse ones need
			to[part.ID] = control.ToDisk
		case needed <= room:
			host.Take(&found[at], needs)
		default:
			r.keeps(part.ID, fmt.Sprintf("its contents need %s of host memory, and there is room for %s",
				readable.Bytes(needed), readable.Bytes(room)))
			return false
		}
	}
	return true
}

// pause reports whether the process has given up its memory. Contents that would take host memory go to the place to,
// or to host memory if it is "". What the last one gives can be taken as it comes.
func (r *maker) pause(part Part, to string, last bool) bool {
	process, err := client.Dial(part.ID)
	if err != nil {
		return false
	}
	defer process.Close()
	tags := make([]*string, max(1, len(part.Tags))) // one nil is all tags
	for i := range part.Tags {
		tags[i] = &part.Tags[i]
	}
	for i, tag := range tags {
		request := control.SteerRequest{Op: control.Pause, Tag: tag, SaveAll: true, Yield: true, To: to}
		if part.Idle {
			request.Idle, request.Timeout = new(Grace.Seconds()), new(idleWithin.Seconds())
		}
		reply, err := r.ask(process, request, last && i == len(tags)-1)
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

// ask sends a pause. If the memory can be taken as it comes, it stops the process first, so that none is taken for a
// pause that waits for the program, or is refused.
func (r *maker) ask(process *client.Conn, pause control.SteerRequest, last bool) (control.Reply, error) {
	send := func(request control.SteerRequest) (control.Reply, error) {
		return group.WhileRunning(context.Background(), process, request, latest, latest)
	}
	if r.comes.uuid == "" || !last {
		return send(pause)
	}
	stop := pause
	stop.Hold, stop.Parts, stop.Lease = true, true, group.AnswerTime.Seconds() // the pause comes at once
	switch reply, err := send(stop); {
	case err == nil && !reply.OK && process.Version < control.AheadSince: // it knows no such hold
		return send(pause)
	case err != nil || !reply.OK:
		return reply, err
	}
	r.comes.begin()
	pause.Parts, pause.Idle, pause.Timeout = true, nil, nil // it stands still
	return send(pause)
}

// keeps notes why a process keeps its memory. It counts as refused once that has not passed for a while.
func (r *maker) keeps(pid int, why string) {
	if r.stayed[pid]++; r.stayed[pid] > triesMost {
		r.refused[pid] = why
	}
	r.busy[pid] = time.Now().Add(idleWithin)
}
