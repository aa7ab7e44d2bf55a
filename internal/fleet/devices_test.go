package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/machine/nvml"
	"tms/vmm/stats"
)

// How much of a device belongs to which process.
func TestDevices(t *testing.T) {
	const gib = 1 << 30
	one := Process{Here: 1, ProcessState: control.ProcessState{PID: 1,
		Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{
			{UUID: "GPU-a", TotalBytes: 80 * gib, FreeBytes: 50 * gib, PoolBytes: gib, BackupBytes: 2 * gib,
				Tags: []stats.Tag{{PhysicalBytes: 3 * gib}, {PhysicalBytes: 4 * gib}}}}}}}}
	silent := Process{Here: 2, ProcessState: control.ProcessState{PID: 2}, Error: "does not answer"}
	gone := Process{Here: 3, ProcessState: control.ProcessState{PID: 3,
		Stats: control.Stats{Everything: true, Stats: stats.Stats{Devices: []stats.Device{
			{Device: 4, UUID: "GPU-a", TotalBytes: 80 * gib}, {Device: 1, UUID: "GPU-b", TotalBytes: 40 * gib}}}}}}
	all := []Process{one, silent, gone}
	var silents uint64 // if process numbers are the driver's
	if SameNumbers() {
		silents = 5 * gib
	}
	device := nvml.Device{Index: 1, UUID: "GPU-a", Name: "NVIDIA H100", TotalBytes: 80 * gib, UsedBytes: 30 * gib,
		FreeBytes: 49 * gib}
	for name, c := range map[string]struct {
		users []nvml.Process
		ours  uint64
	}{
		"all are known": {[]nvml.Process{{PID: 1, UsedBytes: 12 * gib, Known: true},
			{PID: 2, UsedBytes: 5 * gib, Known: true}, {PID: 9, UsedBytes: 13 * gib, Known: true}}, 12*gib + silents},
		"numbers of another machine": {[]nvml.Process{{PID: 1001, UsedBytes: 12 * gib, Known: true}}, 10 * gib},
		"no figures":                 {[]nvml.Process{{PID: 1}, {PID: 2}}, 10 * gib},
		"more than is used":          {[]nvml.Process{{PID: 1, UsedBytes: 40 * gib, Known: true}}, 30 * gib},
	} {
		device.Processes = c.users
		require.Equal(t, []Device{{Label: "1 H100", Total: 80 * gib, Ours: c.ours, Others: 30*gib - c.ours,
			Free: 49 * gib}},
			Devices(all, []nvml.Device{device}), name)
	}
	require.Equal(t, []Device{
		{Label: "dev 0 GPU-a", Total: 80 * gib, Ours: 10 * gib, Others: 20 * gib, Free: 50 * gib},
		{Label: "dev 1 GPU-b", Total: 40 * gib, Others: 40 * gib},
	}, Devices(all, nil))
}
