package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
)

// staticProgram returns a program of preload's tests that contains its own libcudart.
func staticProgram(t *testing.T) string {
	t.Helper()
	simulator := filepath.Join("..", "..", "internal", "cudasim")
	sources, err := filepath.Glob(filepath.Join(simulator, "runtime", "*.c"))
	require.NoError(t, err)
	arguments := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-DCUDART_MAJOR=13", "-O1", "-pthread",
		"-I" + simulator, "-I" + filepath.Join(simulator, "driver"), "-I" + filepath.Join("..", "..", "vmm", "digest"),
		"-fvisibility=hidden", filepath.Join("..", "..", "preload", "testdata", "static.c")}, sources...)
	return hermetic.Compile(t, "static", append(arguments, "-ldl")...)
}

// under runs tms run with arguments, over the simulator.
func under(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	command := exec.Command(tms, append([]string{"run"}, arguments...)...)
	command.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "LD_LIBRARY_PATH="+built(t, "sim"),
		"TMS_EXCLUDE=libother.so:libnccl.so", "LD_PRELOAD=")
	output, err := command.CombinedOutput()
	return string(output), err
}

func TestRun(t *testing.T) {
	program := staticProgram(t)
	for _, flags := range [][]string{nil, {"--pool", "naive"}} {
		output, err := under(t, append(flags, "--", program)...)
		require.NoError(t, err, output)
	}

	output, err := under(t, "--incremental", "--tag", "all of it", "--pool", "caching:memory_fraction=0.5",
		"--trace", "/dev/null", "--account", "sh", "-c",
		"env | grep -E '^(TMS_|LD_PRELOAD)' | sort; exit 7")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode())
	library := built(t, "lib", "libtms.so")
	require.Equal(t, "LD_PRELOAD="+library+":"+built(t, "lib", "libtms_reach.so")+`
TMS_ACCOUNT=1
TMS_CONTROL=1
TMS_EXCLUDE=`+strings.Join(notTaken, ":")+`:libother.so
TMS_INIT_ENABLE=1
TMS_INIT_ENABLE_CPU_BACKUP=1
TMS_INIT_ENABLE_INCREMENTAL_BACKUP=1
TMS_INIT_POOL=caching:memory_fraction=0.5
TMS_INIT_TAG=all of it
TMS_LIBRARY=`+library+`
TMS_TRACE=/dev/null
`, output)

	_, err = under(t, "--", "sh", "-c", "kill -TERM $$")
	require.ErrorAs(t, err, &exit)
	require.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal())
}

// Contents are given up only on request.
func TestRunKeepsContents(t *testing.T) {
	const show = "echo $TMS_INIT_ENABLE_CPU_BACKUP,$TMS_INIT_ENABLE_DISK_BACKUP,$TMS_INIT_ENABLE_PEER_BACKUP" +
		",$TMS_INIT_ENABLE_SPARSE_BACKUP"
	for _, c := range []struct {
		environment, expected string
		flags                 []string
	}{
		{"", "1,,,", nil},
		{"", ",,,", []string{"--backup", "none"}},
		{"", ",,1,", []string{"--backup", "peer"}},
		{"", ",,,1", []string{"--backup", "sparse"}},
		{"TMS_INIT_ENABLE_SPARSE_BACKUP=1", ",,,1", nil},
		{"TMS_INIT_ENABLE_DISK_BACKUP=Yes", ",Yes,,", nil},
		{"TMS_INIT_ENABLE_DISK_BACKUP=0", "1,0,,", nil},
		{"TMS_INIT_ENABLE_DISK_BACKUP=1", "1,0,,", []string{"--backup", "host"}},
		{"TMS_INIT_ENABLE_DISK_BACKUP=1", "1,0,,", []string{"--incremental"}},
		{"TMS_INIT_ENABLE_CPU_BACKUP=1", "0,,,", []string{"--backup", "none"}},
	} {
		name, value, _ := strings.Cut(c.environment, "=")
		t.Run(strings.Join(append(c.flags, c.environment), " "), func(t *testing.T) {
			if name != "" {
				t.Setenv(name, value)
			}
			output, err := under(t, append(c.flags, "--", "sh", "-c", show)...)
			require.NoError(t, err, output)
			require.Equal(t, c.expected+"\n", output)
		})
	}
}

func TestRunIsRefused(t *testing.T) {
	for expected, arguments := range map[string][]string{
		"name the command to run: tms run --":                        {""},
		"name the command to run":                                    nil,
		"--backup ram: contents can wait":                            {"--backup", "ram", "true"},
		"--pool heap: invalid pool option: no kind of pool is named": {"--pool", "heap", "true"},
		"--incremental needs --backup host":                          {"--backup", "disk", "--incremental", "true"},
		"the tag is empty: leave --tag out":                          {"--tag", "", "true"},
	} {
		output, err := under(t, arguments...)
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit) && exit.ExitCode() == exitUsage, "%v", err)
		require.Contains(t, output, "tms: "+expected)
	}
}

// A script tells by the exit status whether the program is missing, as from a shell.
func TestRunOfWhatDoesNotStart(t *testing.T) {
	folder := t.TempDir()
	for name, content := range map[string]string{"no-format": "\x00", "no-interpreter": "#!/there-is-none\n"} {
		executable(t, filepath.Join(folder, name), []byte(content))
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "not-executable"), nil, 0o600))
	for program, expected := range map[string]struct {
		status int
		reason string
	}{
		"there-is-none":            {127, "executable file not found in $PATH"},
		folder + "/not-there":      {127, "no such file or directory"},
		folder + "/no-interpreter": {127, "no such file or directory"},
		folder + "/not-executable": {126, "permission denied"},
		folder + "/no-format":      {126, "exec format error"},
		folder:                     {126, "is a directory"},
	} {
		output, err := under(t, "--", program)
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, program)
		require.Equal(t, expected.status, exit.ExitCode(), program)
		require.Equal(t, "tms: "+program+" cannot be run: "+expected.reason+"\n", output)
	}
}

// The program's children have the environment that tms was started with, but none of tms's own variables.
func TestRunWithoutInheritance(t *testing.T) {
	command := exec.Command(tms, "run", "--backup", "peer", "--no-inherit", "--", "timeout", "60", "env")
	command.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "TMS_EXCLUDE=libother.so",
		"LD_PRELOAD=", "TMS_VERIFY=1", "LD_LIBRARY_PATH="+built(t, "sim"))
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	plain := exec.Command("env")
	for _, entry := range command.Env {
		if !strings.HasPrefix(entry, "TMS_") && !strings.HasPrefix(entry, "LD_PRELOAD=") {
			plain.Env = append(plain.Env, entry)
		}
	}
	plain.Env = append(plain.Env, "ASAN_OPTIONS=verify_asan_link_order=0") // no variable of this library's
	expected, err := plain.Output()
	require.NoError(t, err)
	require.Equal(t, string(expected), string(output))
}

// With --no-io-uring the program has one filter of system calls. It keeps its right to gain others, unless only a program
// without that right may set a filter.
func TestAProgramWithoutRings(t *testing.T) {
	status := func(wrapper ...string) string {
		arguments := append(wrapper, tms, "run", "--no-io-uring", "--", "cat", "/proc/self/status")
		command := exec.Command(arguments[0], arguments[1:]...)
		command.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"))
		output, err := command.Output()
		require.NoError(t, err)
		require.Contains(t, string(output), "Seccomp:\t2\n")
		return string(output)
	}
	admin, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_ADMIN, 0, 0, 0)
	require.NoError(t, err)
	if os.Geteuid() != 0 || admin == 0 { // which root in most containers has not
		require.Contains(t, status(), "NoNewPrivs:\t1\n")
		return
	}
	require.Contains(t, status(), "NoNewPrivs:\t0\n")
	require.Contains(t, status("setpriv", "--bounding-set", "-sys_admin"), "NoNewPrivs:\t1\n")
}
