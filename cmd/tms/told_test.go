package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/doctor"
	"tms/internal/fleet"
)

// A program that shares is told what others can lend, too. Then only its own memory changes the answer, until an
// allocation is refused. Of 100 MiB, 6.25 are the reserve.
func TestShareTellsWhatMayBeHad(t *testing.T) {
	sharesDevice(t)
	one := startSharing(t)
	require.Equal(t, 61, one.count("free"), "its 32 MiB and the reserve are missing")
	other := startSharing(t)
	require.Equal(t, 61, other.count("free"), "it may have the memory of the first, too")
	require.Equal(t, "ok", one.do("lend 20"))
	require.Equal(t, 41, one.count("free"))
	succeeds(t, "pause", other.number())
	require.Equal(t, 41, one.count("free"), "the other's memory comes and goes")
	succeeds(t, "resume", other.number())
	require.Equal(t, "ok", other.do("unseen 14")) // all that is free, and no process can lend it
	require.Equal(t, 41, one.count("free"))
	require.Equal(t, "2", one.do("try 41"))
	require.Equal(t, 27, one.count("free"))
	require.Equal(t, "0", one.do("try 24"))
	require.Equal(t, 3, one.count("free"))
}

// Without the command, a program is told what is free.
func TestShareTellsWithoutTheCommand(t *testing.T) {
	sharesDevice(t)
	one := startSharing(t)
	require.Equal(t, 36, startSharing(t, "TMS_COMMAND=/none").count("free"))
	require.Equal(t, "ok", one.do("check"))
}

// Programs that start at once, and each take all that they are told, take turns.
func TestShareBySizes(t *testing.T) {
	start := sharesDevice(t)
	rounds := hermetic.Often(3000, 300)
	var all []*runningSharer
	for range 2 {
		all = append(all, start("--share --at-least 50ms", 0, 4, rounds, 0))
	}
	for _, s := range all {
		require.Equal(t, fmt.Sprint(rounds*100), s.ends(t))
	}
}

// nvidia-smi under a limit shows the limit, and what this user's programs have.
func TestAskingAsNvidiaSMI(t *testing.T) {
	sharesDevice(t)
	one := startSharing(t)
	require.Equal(t, "ok", one.do("own 4"))
	ask := func(flags ...string) string {
		smi := exec.Command(tms, append(append([]string{"run"}, flags...), "--", fixture(t, "smi"))...)
		smi.Env = append(os.Environ(), "LD_LIBRARY_PATH="+built(t, "sim"), "TMS_LIBRARY="+built(t, "lib", "libtms.so"),
			"CUDASIM_SHARED="+filepath.Base(os.Getenv("TMPDIR")))
		out, err := smi.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	process := " Compute:" + one.number() + ":36"
	require.Equal(t, "0: 100 36 64"+process, ask())
	require.Equal(t, "0: 40 36 4"+process, ask("--limit", "40M"))
	require.Equal(t, "0: 30 30 0"+process, ask("--limit", "30M"))
	require.Equal(t, "0: 100 36 64"+process, ask("--limit", "1G"))
}

// The command itself sees the device's own figures, also below a program with a limit.
func TestTheCommandHasNoLimit(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	t.Setenv("CUDASIM_MEMORY", "100M")
	t.Setenv("TMS_LIBRARY", built(t, "lib", "libtms.so"))
	out, err := exec.Command(tms, "run", "--limit", "40M", "--", tms, "doctor", "--json").CombinedOutput()
	require.NoError(t, err, "%s", out)
	devices := parsed[doctor.Report](t, string(out)).Devices
	require.EqualValues(t, 100<<20, devices[0].MemoryBytes)
}

// tms ps and tms metrics show a limit, and what it has refused.
func TestALimitIsSeen(t *testing.T) {
	sharesDevice(t)
	one := startSteered(t, steeredProgram(t), fmt.Sprint("TMS_LIMIT_BYTES=", 40<<20))
	require.Equal(t, "2", one.do("try 16"))
	require.Equal(t, "2", one.do("try 9"))
	require.Equal(t, "0", one.do("try 8"))
	words := one.number() + ": its limit of 40.00 MiB on device 0 has refused allocations: 2"
	require.Contains(t, succeeds(t, "ps"), words)
	devices := parsed[[]fleet.Process](t, succeeds(t, "ps", "--json"))[0].Stats.Devices
	require.EqualValues(t, 40<<20, devices[0].LimitBytes)
	require.EqualValues(t, 2, devices[0].LimitRefused)
	_, address := serving(t)
	s := scrape(t, address)
	require.Eventually(t, func() bool {
		s = scrape(t, address)
		return len(s.values("tms_limit_refused_total")) > 0
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, []float64{2}, s.values("tms_limit_refused_total", "pid="+one.number(), "device=0"))
	require.Equal(t, []float64{40 << 20}, s.values("tms_device_limit_bytes", "device=0"))
}
