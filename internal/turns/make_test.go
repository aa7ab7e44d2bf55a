package turns

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// Memory is short for good only if it is so without a break: not when a process does not answer for a moment, is in the
// middle of a pause, or has grown since it answered.
func TestShareDoesNotRefuseForAMoment(t *testing.T) {
	sharer := func(pid int, bytes uint64) fleet.Process {
		return fleet.Process{Here: pid, ProcessState: control.ProcessState{PID: pid, Gated: true,
			Share: &control.Share{AtLeast: 3600, Waited: -1},
			Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{{UUID: "GPU-1", TotalBytes: 30,
				Tags: []stats.Tag{{Tag: "default", PhysicalBytes: bytes}}}}}}}}
	}
	asks, one, other := sharer(1, 0), sharer(2, 18), sharer(3, 10)
	asks.Share.Waited, asks.Share.UUID, asks.Share.Bytes = 1, "GPU-1", 19
	silent := other
	silent.Error = "it does not answer"
	moving := sharer(3, 0)
	moving.Stats.Devices[0].Progress = &stats.Progress{Operation: "resume"}
	r := maker{pid: 1}
	look := func(third fleet.Process, silent bool) error {
		r.silent = silent
		if !r.never.IsZero() {
			r.never = r.never.Add(-time.Hour)
		}
		ready, _, err := r.makeOn("GPU-1", []fleet.Process{asks, one, third})
		require.False(t, ready)
		return err
	}
	for range 3 {
		require.NoError(t, look(silent, true))
		require.NoError(t, look(other, false), "it waits for a turn")
		require.NoError(t, look(sharer(3, 0), false), "what it has taken since does not count yet")
		require.NoError(t, look(moving, false))
	}
	require.NoError(t, look(silent, true))
	require.ErrorIs(t, look(silent, true), cuda.OutOfMemory)
}

// The explanation says "never" only where the maker would not wait on.
func TestTheExplanationHopesAsTheMakerDoes(t *testing.T) {
	sharer := func(pid int, held, free uint64) fleet.Process {
		return fleet.Process{Here: pid, ProcessState: control.ProcessState{PID: pid, Gated: true,
			Share: &control.Share{AtLeast: 3600, Waited: -1},
			Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{{UUID: "GPU-1", TotalBytes: 100, FreeBytes: free,
				Tags: []stats.Tag{{Tag: "default", PhysicalBytes: held}}}}}}}}
	}
	explains := func(held, free uint64, change func(asks, other *fleet.Process)) string {
		asks, other := sharer(1, 0, free), sharer(2, held, free)
		asks.Share.Waited, asks.Share.UUID, asks.Share.Bytes = 1, "GPU-1", 90
		if change != nil {
			change(&asks, &other)
		}
		lines := NewExplanation([]fleet.Process{asks, other}).Waits(asks)
		require.Len(t, lines, 1)
		return lines[0]
	}
	require.Contains(t, explains(20, 20, nil), "it waits for memory that no process here accounts for")
	require.Contains(t, explains(20, 20, func(_, other *fleet.Process) {
		other.Stats.Devices[0].Progress = &stats.Progress{Operation: "pause"}
	}), "it waits for a pause or a resume to end")
	require.Contains(t, explains(20, 20, func(asks, other *fleet.Process) {
		asks.Share.Bytes, other.Error = 100, "it does not answer"
	}), "it waits for processes that do not answer")
	require.Contains(t, explains(20, 20, func(asks, _ *fleet.Process) { asks.Share.Bytes = 101 }),
		"there will never be enough")
}

// The parts of one decision are budgeted together, and what does not fit goes to files where that is allowed.
func TestBudget(t *testing.T) {
	sharer := func(pid int, disk bool) fleet.Process {
		tags := []stats.Tag{{Tag: "a", PauseHostBytes: 30, HostBytes: 5}, {Tag: "b", PauseWithoutContents: 10}}
		return fleet.Process{ProcessState: control.ProcessState{PID: pid, Share: &control.Share{HostLimit: 70, Disk: disk},
			Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{{UUID: "GPU-1", Tags: tags}}}}}}
	}
	r := maker{stayed: map[int]int{}, busy: map[int]time.Time{}}
	budget := func(disk bool, parts ...Part) (to map[int]string, enough bool) {
		to = map[int]string{}
		return to, r.budget(parts, []fleet.Process{sharer(1, true), sharer(2, disk)}, to)
	}
	to, enough := budget(false, Part{ID: 1, Tags: []string{"a"}}, Part{ID: 2, Tags: []string{"a"}})
	require.True(t, enough)
	require.Empty(t, to)
	_, enough = budget(false, Part{ID: 1}, Part{ID: 2})
	require.False(t, enough)
	to, enough = budget(true, Part{ID: 1}, Part{ID: 2})
	require.True(t, enough)
	require.Equal(t, map[int]string{2: control.ToDisk}, to)
	r.keeps(1, "sparse contents found too little")
	to, _ = budget(false, Part{ID: 1})
	require.Equal(t, map[int]string{1: control.ToDisk}, to)
}
