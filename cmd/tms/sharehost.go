package main

import (
	"fmt"
	"slices"
	"time"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/readable"
	"tms/internal/share"
	"tms/vmm/cuda"
)

// All processes that share keep their contents in the host memory of one machine, whatever their devices. A pause takes
// it bit by bit, so two commands that look at the same time would both see it free.

// pauseAll pauses the parts if there is room for the contents of all of them. Unless there is plenty, one command at a
// time does so. It locks a device first, so two never wait for each other.
func (r *roomFor) pauseAll(parts []share.Part, found []fleet.Process) (done bool, err error) {
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
	for _, part := range parts {
		if !r.pause(part, to[part.ID]) {
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
func (r *roomFor) budget(parts []share.Part, found []fleet.Process, to map[int]string) bool {
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
		case found[at].Share.Disk && (needed > room || r.kept[part.ID] > 0): // only a pause finds out what sparse ones need
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
