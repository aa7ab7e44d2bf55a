package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/doctor"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/report/replay"
	"tms/internal/snapshot"
	"tms/internal/snapshot/tree"
)

// No field of what the commands write as JSON is renamed, removed, or of another type than before.
func TestJSONIsStable(t *testing.T) {
	file := func(name string) string { return filepath.Join("testdata", "json", name+".json") }
	hermetic.Stable[fleet.Process](t, file("ps"))
	hermetic.Stable[group.Outcome](t, file("pause")) // and of resume, swap and move
	hermetic.Stable[group.Plan](t, file("dry-run"))
	hermetic.Stable[control.KeptSet](t, file("kept"))
	hermetic.Stable[verified](t, file("kept-verify"))
	hermetic.Stable[tree.Taken](t, file("snapshot"))
	hermetic.Stable[tree.Restored](t, file("restore"))
	hermetic.Stable[snapshot.Listed](t, file("snapshots"))
	hermetic.Stable[snapshotCheck](t, file("snapshots-check"))
	hermetic.Stable[snapshotPrune](t, file("snapshots-prune"))
	hermetic.Stable[doctor.Report](t, file("doctor"))
	hermetic.Stable[replay.Result](t, file("replay"))
}

// A library that was loaded before an upgrade runs the command of after it: these are the arguments of libtms.so 0.1.
func TestArgumentsOfEarlierLibraries(t *testing.T) {
	for _, line := range []string{
		"pause 1 --everything --force --timeout 1.000000 --report",
		"resume 1 --driver --wait 1.000000 --report",
		"share 1 --report",
		"share 1 --report --may-take GPU-1,2,3",
		"keeper --start",
		"keeper --idle",
		"kept promote --start -- model",
		"kept demote --start",
	} {
		command, arguments, err := rootCommand().Find(strings.Split(line, " "))
		require.NoError(t, err, line)
		require.Equal(t, strings.Split(line, " ")[0], strings.Split(command.CommandPath(), " ")[1], line)
		require.NoError(t, command.ParseFlags(arguments), line)
		require.NoError(t, command.ValidateArgs(command.Flags().Args()), line)
	}
}

// The command and a process's library understand each other if one of them is newer: the command sends an older library
// only what it knows, and ignores what a newer one says beyond that.
func TestOtherLibraries(t *testing.T) {
	ownSockets(t)
	other := answering(t, "agrees").number()
	for _, library := range []string{"later", "earlier"} {
		pid := answering(t, library).number()
		require.Contains(t, succeeds(t, "ps"), pid)
		for _, line := range [][]string{{"pause", pid}, {"resume", pid, "--wait", "1"}, {"pause", pid, "--to", "disk"},
			{"pause", pid, "--tag", "a", "--force", "--discard"}, {"swap", pid, other}, {"swap", other, pid}} {
			for _, o := range parsed[[]group.Outcome](t, succeeds(t, append(line, "--json")...)) {
				require.True(t, o.OK)
				require.Equal(t, uint64(1), o.Bytes)
			}
		}
	}
	fails(t, exitNo, "its libtms.so is of an earlier version, which lends nothing", "lend", answering(t, "earlier").number(),
		"--for", "1h")
}
