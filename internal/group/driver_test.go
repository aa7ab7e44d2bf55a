package group

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/machine/checkpoint"
	"tms/internal/machine/nvml"
)

func TestWhatACheckpointTook(t *testing.T) {
	own, other, hidden := nvml.Process{PID: 7, UsedBytes: 5, Known: true}, nvml.Process{PID: 8, UsedBytes: 3, Known: true},
		nvml.Process{PID: 9}
	device := func(used uint64, processes ...nvml.Process) nvml.Device {
		return nvml.Device{UsedBytes: used, Processes: processes}
	}
	for _, c := range []struct {
		before, after nvml.Device
		took          uint64
	}{
		{device(8, own, other), device(9, other), 5},    // others take memory while it waits
		{device(8, own, other), device(2), 6},           // two have gone: the more of both
		{device(8, hidden, other), device(2, other), 6}, // without a figure
		{device(8), device(2), 6},                       // in a container NVML may show none
		{device(8), device(9), 0},
	} {
		require.Equal(t, c.took, takenBy(c.before, c.after))
	}
	part := control.Driver{Devices: []control.DriverBytes{{UUID: "a", Bytes: 2}, {UUID: "b", Bytes: 3}}}
	require.Equal(t, needed{"a": 2, "b": 3}, needOf(&part, nil))
	require.Equal(t, needed{"b": 2, "a": 3}, needOf(&part, []checkpoint.Pair{{Old: "a", New: "b"}, {Old: "b", New: "a"}}))
}
