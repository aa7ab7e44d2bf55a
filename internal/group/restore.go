package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
	"tms/internal/machine/nvml"
	"tms/vmm/cuda"
)

// A restore for which the driver finds too little memory loses the process (checkpoint.ErrLost). So the command that
// makes a checkpoint measures what the driver takes, and notes it with the process. Each restore then looks whether
// that much is free, under the locks that all commands take before they take memory. What other programs take between
// the look and the restore is out of reach, so nothing that takes time stands between the two.

// needed is how many bytes a restore needs, by the UUID of the GPU.
type needed map[string]uint64

// devices lists the GPUs, in the order in which their locks are taken.
func (n needed) devices() []string { return slices.Sorted(maps.Keys(n)) }

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
	for _, uuid := range n.devices() {
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
		err := restoreLocked(ctx, driver, pid, need, pairs)
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

func restoreLocked(ctx context.Context, driver *checkpoint.Driver, pid int, need needed,
	pairs []checkpoint.Pair) error {
	room, err := checkpoint.Look(func() (func(), error) { return LockDevices(ctx, need.devices()) }, func() error {
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
	state, err := process.Status(context.Background(), AnswerTime)
	return state.Driver, control.Seconds(state.ResumeWait), err
}
