package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	numbering "tms/internal/machine/process"
)

// contained is a program in namespaces of its own, as docs/containers.md describes containers.
type contained struct {
	*steered
	init int // the host's number of its first process, which is number 1 there
}

// contain starts a program in a PID, a mount and a user namespace, where it is root. The directory shared is its
// TMPDIR, at the place volume and nowhere else. Its namespace's first process only waits.
func contain(t *testing.T, shared, volume string) contained {
	t.Helper()
	flags := []string{"--user", "--map-root-user", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"}
	hermetic.Namespaces(t, flags...)
	program := exec.Command("unshare", append(flags, "sh", "-c", `exec 3<&0
mount --bind "$1" "$2" && mount -t tmpfs none "$1" || exit
XDG_RUNTIME_DIR=/nowhere TMPDIR="$2" LD_PRELOAD="$3" TMS_CONTROL=1 "$4" <&3 &
wait`, "sh", shared, volume, strings.TrimPrefix(reaching(t), "LD_PRELOAD="), steeredProgram(t))...)
	program.Env = append(os.Environ(), "LD_LIBRARY_PATH="+built(t, "sim"), "CUDASIM_MEMORY=256M")
	c := contained{steered: startToListen(t, program)}
	c.init = c.child(program.Process.Pid)
	return c
}

// child returns the only child of a process.
func (c contained) child(pid int) int {
	c.t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	require.NoError(c.t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	require.NoError(c.t, err)
	return child
}

// beside runs tms in a container of its own, which shares the program's namespaces that nsenter is told, and has the
// directory shared at another place; "": it has it not.
func (c contained) beside(shared string, namespaces []string, arguments ...string) (output string, code int) {
	c.t.Helper()
	line := append([]string{"--target", strconv.Itoa(c.init), "--user", "--preserve-credentials"}, namespaces...)
	line = append(line, "unshare", "--mount", "--mount-proc")
	if !slices.Contains(namespaces, "--pid") {
		line = append(line, "--pid", "--fork")
	}
	line = append(line, "sh", "-c", `if [ "$1" ]; then mount --bind "$1" "$2" || exit; fi
export XDG_RUNTIME_DIR=/nowhere TMPDIR="$2"; shift 2
exec "$@"`, "sh", shared, c.t.TempDir(), tms)
	out, err := exec.Command("nsenter", append(line, arguments...)...).CombinedOutput()
	if err != nil {
		require.IsType(c.t, &exec.ExitError{}, err, "%s", out)
		code = err.(*exec.ExitError).ExitCode()
	}
	return string(out), code
}

// What docs/containers.md says: what the container of the command must share with that of the program, and what the
// command says where it does not.
func TestContainers(t *testing.T) {
	ownSockets(t)
	shared, volume := t.TempDir(), t.TempDir()
	require.NoError(t, os.Chmod(shared, 0o777)) // as an emptyDir of Kubernetes is
	c := contain(t, shared, volume)
	one := c.child(c.init)
	numbers := numbering.Numbers(one)
	require.Len(t, numbers, 2)
	host, there := numbers[0], numbers[1]
	require.NotEqual(t, host, there)
	says := func(wanted int, pattern string) func(out string, code int) {
		return func(out string, code int) {
			t.Helper()
			require.Equal(t, wanted, code, out)
			require.Regexp(t, pattern, out)
		}
	}
	// A busy machine has a line before, of what takes long.
	paused, resumed := "(?m)^"+there+": paused, 32.00 MiB freed in", "(?m)^"+there+": resumed, 32.00 MiB"
	listed := `(?m)^ *` + there + ` .* weights .* active`
	const noProcess = "^tms: no process of this user listens"
	elsewhere := "^tms: " + there + ": the process that listens by that number has it in another PID namespace " +
		`\(a container\): run tms there\n$`

	// A side-car shares the PID namespace and has the directory as a volume.
	sidecar := []string{"--pid"}
	says(0, listed)(c.beside(shared, sidecar, "ps"))
	says(0, paused)(c.beside(shared, sidecar, "pause", there))
	says(0, resumed)(c.beside(shared, sidecar, "resume", there))
	says(0, paused)(c.beside(shared, sidecar, "pause", "--all"))
	says(0, resumed)(c.beside(shared, sidecar, "resume", "--all"))
	require.Equal(t, "ok", c.do("check"))
	// Without the volume it finds no process, and without the PID namespace it can only look.
	says(0, noProcess)(c.beside("", sidecar, "ps"))
	says(exitNoProcess, "^tms: "+there+": it does not listen yet ")(c.beside("", sidecar, "pause", there))
	says(0, listed)(c.beside(shared, nil, "ps"))
	says(exitNoProcess, elsewhere)(c.beside(shared, nil, "pause", there))

	// On the host, the sockets' directory is named after another user, unless the container's root is the host's.
	if os.Geteuid() == 0 {
		t.Setenv("XDG_RUNTIME_DIR", "/nowhere")
		t.Setenv("TMPDIR", shared)
		require.Regexp(t, listed, succeeds(t, "ps"))
		require.Regexp(t, elsewhere, fails(t, exitNoProcess, "", "pause", there))
		fails(t, exitNoProcess, "tms: "+host+": it is number "+there+" of another PID namespace (a container): run tms there",
			"pause", host)
		_, address := serving(t)
		for scrape(t, address).values("tms_process_up", "pid="+there)[0] < 1 { // it has a second to answer
		}
	}
	// docker exec and kubectl exec enter all namespaces of the program.
	entered := exec.Command("nsenter", "--target", strconv.Itoa(c.init), "--user", "--preserve-credentials", "--mount",
		"--pid", "env", "TMPDIR="+volume, tms, "pause", there)
	out, err := entered.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, paused, string(out))
}
