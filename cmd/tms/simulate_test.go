package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"tms/internal/fleet"
)

// Programs started with --simulate see the same devices, in whose memory they take turns from outside; programs of
// another CUDASIM_SHARED have devices of their own.
func TestSimulate(t *testing.T) {
	ownSockets(t)
	program := steeredProgram(t)
	t.Setenv("TMS_LIBRARY", built(t, "lib", "libtms.so"))
	t.Setenv("LD_LIBRARY_PATH", "")
	group := filepath.Base(os.Getenv("TMPDIR"))
	start := func(group string) *steered { // holds 32 MiB
		t.Helper()
		t.Setenv("CUDASIM_SHARED", group)
		return startToListen(t, exec.Command(tms, "run", "--simulate", "--memory", "64M", "--", program))
	}
	free := func(s *steered) uint64 {
		t.Helper()
		return parsed[[]fleet.Process](t, succeeds(t, "ps", "--json", s.number()))[0].Stats.Devices[0].FreeBytes
	}
	one, two, apart := start(group), start(group), start(group+"-apart")
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	require.NotContains(t, succeeds(t, "doctor", "--pid", one.number()), "warning") // both libraries are expected
	require.Zero(t, free(one))
	require.Zero(t, free(two))
	require.EqualValues(t, 32<<20, free(apart))
	require.Contains(t, succeeds(t, "pause", one.number()), ": paused, 32.00 MiB freed")
	require.EqualValues(t, 32<<20, free(two))
	two.do("hog")
	fails(t, exitNo, "GPU 0 has 0 bytes free and 32.00 MiB are needed", "resume", one.number())
	two.do("unhog")
	require.Contains(t, succeeds(t, "resume", one.number()), ": resumed, 32.00 MiB")
}

func TestSimulateSettings(t *testing.T) {
	library := filepath.Join(t.TempDir(), "lib", "libtms.so")
	simulator := filepath.Dir(built(t, "sim", "libcuda.so.1"))
	says := func(environment []string, flags ...string) (string, error) {
		c := exec.Command(tms, append(append([]string{"run"}, flags...), "sh", "-c",
			"echo $LD_LIBRARY_PATH $CUDASIM_SHARED,$CUDASIM_DEVICES,$CUDASIM_MEMORY")...)
		c.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMS_LIBRARY=" + built(t, "lib", "libtms.so")},
			environment...)
		output, err := c.CombinedOutput()
		return string(output), err
	}
	for want, flags := range map[string][]string{
		",,\n":                         nil,
		simulator + " tms,,\n":         {"--simulate"},
		simulator + " tms,3,4194304\n": {"--simulate", "--devices", "3", "--memory", "4MiB", "--no-inherit"},
	} {
		output, err := says(nil, flags...)
		require.NoError(t, err, output)
		require.Equal(t, want, output)
	}
	output, err := says([]string{"LD_LIBRARY_PATH=/a:/b", "CUDASIM_SHARED=", "CUDASIM_MEMORY=1M"}, "--simulate")
	require.NoError(t, err, output)
	require.Equal(t, simulator+":/a:/b ,,1M\n", output)

	for _, name := range []string{"libtms.so", "libtms_reach.so"} {
		path := filepath.Join(filepath.Dir(library), name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	for want, flags := range map[string]string{
		"--devices and --memory describe simulated devices: give --simulate, too": "--devices 2",
		"describe simulated devices":                                     "--memory 8G",
		"--devices 17: give a number from 1 to 16":                       "--simulate --devices 17",
		"--devices 0: give a number from 1 to 16":                        "--simulate --devices 0",
		"--devices two: give a whole number":                             "--simulate --devices two",
		"--memory 8X: give a number of bytes, such as 40GiB":             "--simulate --memory 8X",
		"the simulator is not in " + filepath.Dir(filepath.Dir(library)): "--simulate",
	} {
		c := exec.Command(tms, append(append([]string{"run"}, strings.Fields(flags)...), "true")...)
		c.Env = append(os.Environ(), "TMS_LIBRARY="+library)
		_, said, code := ran(t, c)
		require.Equal(t, exitUsage, code, flags)
		require.Regexp(t, "^tms: .*\\n$", said)
		require.Contains(t, said, want)
	}
}
