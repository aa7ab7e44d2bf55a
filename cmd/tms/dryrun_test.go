package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/group"
)

// What a dry run prints comes true, and nothing is done before.
func TestDryRun(t *testing.T) {
	large, small, start := pair(t)
	one, other := small.number(), large.number()
	out := succeeds(t, "pause", "--dry-run", one)
	require.Regexp(t, "^"+one+`: would free 32\.00 MiB of device 0 \(`+uuidOf(0)+`\): 8\.00 MiB of cache, 24\.00 MiB of weights`+"\n"+
		one+": would free 8.00 MiB without contents: cache\n"+
		one+`: would take 24\.00 MiB of host memory for contents(; .* available)?`+"\n$", out)
	require.Equal(t, one+": nothing to resume\n", succeeds(t, "resume", "--dry-run", "--tag", "cache", one))

	out, errors_, code := command(t, "resume", "--dry-run", other)
	require.Equal(t, exitNo, code)
	require.Contains(t, out,
		other+": would take 64.00 MiB of device 0 ("+uuidOf(0)+"): 16.00 MiB of cache, 48.00 MiB of weights; 38.00 MiB free\n")
	require.Equal(t, "tms: "+other+": it does not fit: device 0 ("+uuidOf(0)+") would have 38.00 MiB free and "+
		"64.00 MiB are needed\n", errors_)
	require.Contains(t, succeeds(t, "resume", "--dry-run", other, "--tag", "cache"),
		"16.00 MiB of cache; 38.00 MiB free\n")

	require.Contains(t, succeeds(t, "swap", "--dry-run", one, other), "; 70.00 MiB free\n")
	plans := parsed[[]group.Plan](t, succeeds(t, "swap", "--dry-run", "--json", one, other))
	require.Len(t, plans, 2)
	require.True(t, plans[0].Fits && plans[1].Fits)
	require.Equal(t, []string{control.Pause, control.Resume}, []string{plans[0].Op, plans[1].Op})
	require.EqualValues(t, smallBytes, held(t, small))
	require.Zero(t, held(t, large))
	require.Equal(t, []uint64{8 << 20, 16 << 20}, // 16 are gone
		[]uint64{plans[0].WithoutContents, plans[1].WithoutContents})
	require.Equal(t, uint64(8<<20), plans[0].Devices[0].Tags[0].WithoutContents)

	outcomes := parsed[[]group.Outcome](t, succeeds(t, "swap", "--json", one, other))
	require.Equal(t, []uint64{plans[0].Bytes, plans[1].Bytes}, []uint64{outcomes[0].Bytes, outcomes[1].Bytes})
	require.Equal(t, plans[0].WithoutContents, outcomes[0].WithoutContents)
	state, err := status(small.Process.Pid, group.AnswerTime)
	require.NoError(t, err)
	var host uint64
	for _, tag := range state.Stats.Devices[0].Tags {
		host += tag.HostBytes
		require.Zero(t, tag.PauseHostBytes)
	}
	require.Equal(t, host, plans[0].HostBytes)
	require.EqualValues(t, 24<<20, host)

	succeeds(t, "swap", other, one) // makes room
	third := start()
	const missing = "999999999: there is no such process"
	require.Contains(t, fails(t, exitNo, missing, "pause", "--dry-run", third.number(), "999999999"),
		third.number()+": its threads cannot be stopped")
	fails(t, exitNoProcess, missing, "swap", "--dry-run", "--force", third.number(), "999999999")
}

// While the driver has a process, a dry run says what the look before the restore would say.
func TestDryRunOfTheDriversPart(t *testing.T) {
	w := startWhole(t)
	w.pause()
	one := w.number()
	const driver = ": the driver would first take 40.00 MiB of GPU 0, and wants a margin of 1.00 MiB; "
	require.Equal(t, one+driver+"128.00 MiB free\n"+
		one+": would take 32.00 MiB of GPU 0: 8.00 MiB of cache, 24.00 MiB of weights; 88.00 MiB free\n"+
		one+": would take 8.00 MiB without contents: cache\n", succeeds(t, "resume", "--dry-run", one))
	holder := lockHeld(t, uuidOf(0))
	require.Regexp(t, "128.00 MiB free; its lock is wanted by [0-9]+ ?[0-9]*\n", succeeds(t, "resume", "--dry-run", one))
	holder.End()

	w.other.do("more 60") // so that the rest does not fit
	w.refused("it does not fit: GPU 0 would have 28.00 MiB free and 32.00 MiB are needed", "resume", "--dry-run", one)
	w.other.do("more 28")
	w.refused("it does not fit: GPU 0 would have 40.00 MiB free and the driver needs 41.00 MiB", "resume", "--dry-run", one)
	stdout, _, code := command(t, "resume", "--dry-run", "--json", one)
	require.Equal(t, exitNo, code)
	plans := parsed[[]group.Plan](t, stdout)
	require.Equal(t, []group.PlanDriver{{GPU: 0, UUID: uuidOf(0), Bytes: 40 << 20, Margin: 1 << 20,
		Free: new(uint64(40 << 20)), Asking: []int{}}}, plans[0].Driver)
	require.False(t, plans[0].Fits)
	w.requireFree(40)
}
