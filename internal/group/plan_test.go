package group

import (
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/machine/hostmemory"
	"tms/vmm/stats"
)

// Each plan has what the earlier ones leave, on devices by their UUIDs, which a move changes.
func TestPlans(t *testing.T) {
	state := func(device int, tag stats.Tag) control.ProcessState {
		uuid := "GPU-a" // of both processes, which number it otherwise
		if device == 1 {
			uuid = "GPU-b"
		}
		return control.ProcessState{Gated: true, Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{
			{Device: device, UUID: uuid, FreeBytes: 10, Tags: []stats.Tag{tag}}}}}}
	}
	p := NewPlanning(nil, false)
	make := func(pid int, op string, state control.ProcessState) Plan {
		made := Plan{PID: pid, Op: op}
		p.plan(&made, state)
		return made
	}
	own, other := os.Getpid(), 999999999
	require.Empty(t, make(own, control.Pause, state(3, stats.Tag{PhysicalBytes: 100})).Error)
	require.Empty(t, make(other, control.Resume, state(0, stats.Tag{PausedBytes: 60})).Error)
	require.Contains(t, make(own, control.Resume, state(3, stats.Tag{PausedBytes: 60})).Error,
		"device 3 (GPU-a) would have 50 bytes free and 60 bytes are needed")
	require.Contains(t, make(own, control.Resume, state(1, stats.Tag{PausedBytes: 11})).Error,
		"would have 10 bytes free")
	made := make(own, control.Pause, state(0, stats.Tag{PhysicalBytes: 1, PauseHostBytes: 1 << 62}))
	if made.HostAvailableBytes != nil { // otherwise this machine gets memory as it uses it
		require.Contains(t, made.Error, "4.00 EiB are needed for contents")
		most := *made.HostAvailableBytes / 2
		first := make(own, control.Pause, state(0, stats.Tag{PhysicalBytes: 1, PauseHostBytes: most}))
		require.Empty(t, first.Error, "what does not fit takes nothing")
		second := make(own, control.Pause, state(0, stats.Tag{PhysicalBytes: 1, PauseHostBytes: 2 * most}))
		require.Contains(t, second.Error, "it does not fit: ", "but what fits does")
	}
}

// Reserved memory serves the devices of its own NUMA node alone, in plans.
func TestReservedMemoryServesItsNode(t *testing.T) {
	if hostmemory.Available("self", nil) == math.MaxUint64 {
		t.Skip("this machine gets memory as it uses it")
	}
	const most = 1 << 50
	p := NewPlanning(nil, false)
	p.host.Reserved = fleet.NodeBytes{0: 2 * most, 3: most}
	pause := func(devices ...stats.Device) string {
		made := Plan{PID: os.Getpid(), Op: control.Pause}
		p.plan(&made, control.ProcessState{Gated: true, Stats: control.Stats{Stats: stats.Stats{Devices: devices}}})
		return made.Error
	}
	device := func(node int, needs uint64) stats.Device {
		return stats.Device{UUID: strconv.Itoa(node), Node: node,
			Tags: []stats.Tag{{PhysicalBytes: needs, PauseHostBytes: needs}}}
	}
	const tooMuch = "it does not fit: "
	require.Contains(t, pause(device(1, most)), tooMuch)
	require.Contains(t, pause(device(3, most), device(1, most)), tooMuch)
	require.Contains(t, pause(device(3, 2*most)), tooMuch)
	require.Empty(t, pause(device(3, most), device(-1, most)), "of an unknown node the first serves")
	require.Contains(t, pause(device(3, most)), tooMuch, "it is taken")
	require.Empty(t, pause(device(0, most)))
	require.Contains(t, pause(device(0, most)), tooMuch)
}
