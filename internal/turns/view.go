package turns

import (
	"slices"
	"time"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

// sharers returns what the policy must know of a device, and of the processes that share it. What is free is the least
// that any process has seen since the lock was taken: the process itself may have no context there yet.
func (r *maker) sharers(uuid string, found []fleet.Process) (device Device, all []Process) {
	seenBy := 0
	for _, p := range found {
		at := slices.IndexFunc(p.Stats.Devices, func(d stats.Device) bool { return d.UUID == uuid })
		var seen stats.Device
		if p.Error == "" && at >= 0 {
			seen = p.Stats.Devices[at]
			if seenBy++; seenBy == 1 || seen.FreeBytes < device.Free {
				device = Device{Free: seen.FreeBytes, Reserve: stats.Reserve(seen.TotalBytes)}
			}
		}
		if p.Error != "" || p.Share == nil || p.Here != p.PID || at < 0 && needsOf(p.ProcessState)[uuid] == 0 {
			continue
		}
		_, refused := r.refused[p.PID]
		one := Process{ID: p.PID, Priority: p.Share.Priority, Ran: control.Seconds(p.Share.Ran),
			Grew: control.Seconds(p.Share.Grew), Grows: p.Share.Waited >= 0 && !p.Share.Resumes,
			AtLeast: control.Seconds(p.Share.AtLeast), Away: control.Seconds(p.Share.Away), Pinned: refused || !p.Gated,
			Busy: p.Stats.Capturing || p.Stats.Everything || p.Doing != "" || time.Now().Before(r.busy[p.PID]),
			Need: needsOf(p.ProcessState)[uuid], Waited: control.Seconds(p.Share.Waited)}
		if p.IdleSeconds != nil {
			one.Idle = control.Seconds(*p.IdleSeconds)
		}
		for _, tag := range seen.Tags {
			one.Tags = append(one.Tags, Tag{Name: tag.Tag, Bytes: tag.PhysicalBytes})
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
