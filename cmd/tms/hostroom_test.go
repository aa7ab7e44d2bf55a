package main

import (
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/hostmemory"
	"tms/vmm/stats"
)

// Reserved memory serves the devices of its own NUMA node alone, in plans and where room is made.
func TestReservedMemoryServesItsNode(t *testing.T) {
	if hostmemory.Available("self", nil) == math.MaxUint64 {
		t.Skip("this machine gets memory as it uses it")
	}
	const most = 1 << 50
	p := steering{}.planning(false)
	p.reserved = byNode{0: 2 * most, 3: most}
	pause := func(devices ...stats.Device) string {
		made := plan{PID: os.Getpid(), Op: control.Pause}
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

	room := hostRoom{limit: math.MaxUint64, reserved: byNode{1: most}}
	here := fleet.Process{Here: os.Getpid()}
	require.Less(t, room.of(here, byNode{0: most}), uint64(most))
	require.GreaterOrEqual(t, room.of(here, byNode{1: most}), uint64(most))
	room.take(here, byNode{1: most})
	require.Less(t, room.of(here, byNode{1: most}), uint64(most))
}
