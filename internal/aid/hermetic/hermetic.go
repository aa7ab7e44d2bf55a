// Package hermetic runs the tests of a package so that nothing else on the machine reaches them, nor they it.
package hermetic

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Main runs the tests, after what prepares them, and returns their exit code. XDG_RUNTIME_DIR and TMPDIR are folders of
// this process alone, so its processes meet no other's. A process that is still there a minute after the last test is a
// failure. However this process ends, its processes and folders end with it. Its children do not ignore the signals that
// it itself was started to ignore, as happens in the background of a script. Main begins a session where the tests
// belong to a session from outside of the container, as CRIU cannot take the programs of such a session.
func Main(m *testing.M, prepare ...func() error) int {
	meeting, err := os.MkdirTemp("/tmp", "tms-test-") // whatever TMPDIR is, because a socket's path must be short
	if err != nil {
		return failed(err)
	}
	beside := os.TempDir()
	if len(beside) > 50 { // a test's socket there would have a path of more than 107 bytes
		beside = "/tmp"
	}
	files, err := os.MkdirTemp(beside, "tms-test-")
	if err != nil {
		return failed(err)
	}
	end, err := endsWithThis(meeting, files)
	if err != nil {
		return failed(err)
	}
	defer end()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM)
	go func() { os.Exit(128 + int((<-ended).(syscall.Signal))) }()
	if err := os.Chmod(files, 0o755); err != nil { // for programs that become another user
		return failed(err)
	}
	for name, folder := range map[string]string{"XDG_RUNTIME_DIR": meeting, "TMPDIR": files, ofTests: meeting} {
		if err := os.Setenv(name, folder); err != nil {
			return failed(err)
		}
	}
	if err := os.Unsetenv("TMS_NO_INSTALL"); err != nil { // is the scripts', and the library would warn of it
		return failed(err)
	}
	unix.Umask(0o022) // the usual one, as tests make files that others may read
	if session, err := unix.Getsid(0); err == nil && session == 0 {
		if _, err := unix.Setsid(); err != nil {
			return failed(fmt.Errorf("setsid: %w", err))
		}
	}
	// Programs would inherit what the tests were started with, and CRIU refuses files that are not of their namespaces.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return failed(err)
	}
	for _, do := range prepare {
		if err := do(); err != nil {
			return failed(err)
		}
	}
	code := m.Run()
	if err := allEnded(meeting, time.Minute); err != nil {
		return max(code, failed(err))
	}
	return code
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// Quick is for scripts/test.sh, which tells in a few minutes whether the product works: a test that repeats one
// behaviour at many places tries some of them, or is left to scripts/check.sh.
var Quick = os.Getenv("TESTS_QUICK") == "1"

// Thorough skips a test under scripts/test.sh. It is for what takes many seconds of processor time.
func Thorough(t testing.TB) {
	t.Helper()
	if Quick {
		t.Skip("scripts/check.sh runs it")
	}
}

// Full is for the soak: repeated tests run as often, and for as long, as is worth a machine of its own.
var Full = os.Getenv("TESTS_FULL") == "1"

// Often returns how often to repeat something: soak times in the soak, else usual times.
func Often(soak, usual int) int {
	if Full {
		return soak
	}
	return usual
}

// Number returns the number in an environment variable, or usual.
func Number(t testing.TB, variable string, usual int) int {
	t.Helper()
	if text := os.Getenv(variable); text != "" {
		number, err := strconv.Atoi(text)
		require.NoError(t, err, variable)
		return number
	}
	return usual
}

// Program finds a program by any of its names. A test is skipped if its program is missing, except under
// scripts/check.sh, which installs what is missing.
func Program(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, names[0])
	return ""
}

// Missing ends a test that needs something that is not there.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("TESTS_COMPLETE") == "1" {
		t.Fatalf("%s is missing, which scripts/check.sh installs", what)
	}
	t.Skipf("%s is missing: scripts/check.sh installs it", what)
}

// Namespaces skips a test where no namespaces of these kinds can be made, as in most containers: Docker's filter of
// system calls refuses unshare.
func Namespaces(t testing.TB, flags ...string) {
	t.Helper()
	if output, err := exec.Command("unshare", append(flags, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no namespaces can be made here (unshare %s): %v: %s", strings.Join(flags, " "), err, output)
	}
}

// MapFiles skips a test where no process can open what another has mapped, as a snapshot does.
func MapFiles(t testing.TB) {
	t.Helper()
	mapped, err := filepath.Glob("/proc/self/map_files/*")
	require.NoError(t, err)
	require.NotEmpty(t, mapped)
	if _, err := os.Stat(mapped[0]); err != nil {
		t.Skipf("snapshots cannot be made here (CAP_CHECKPOINT_RESTORE): %v", err)
	}
}

// HasOtherUsers reports whether a process can become another user: root can, except in a user namespace that has no
// second user (unshare -r, Apptainer).
var HasOtherUsers = sync.OnceValue(func() bool {
	another := exec.Command("true")
	another.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return os.Geteuid() == 0 && another.Run() == nil
})

// OtherUsers skips a test that has processes or files of other users where HasOtherUsers reports that it cannot.
func OtherUsers(t testing.TB) {
	t.Helper()
	if !HasOtherUsers() {
		t.Skip("no process can become another user here: only root can, in a user namespace that has other users")
	}
}

// Reachable skips a test if other users cannot reach a file that its programs need, as in root's home directory.
func Reachable(t testing.TB, file string) {
	t.Helper()
	for folder := filepath.Dir(file); folder != "/"; folder = filepath.Dir(folder) {
		information, err := os.Stat(folder)
		require.NoError(t, err)
		if information.Mode()&1 == 0 {
			t.Skipf("other users cannot reach %s: put the checkout elsewhere, or let them (chmod o+x %s)", file, folder)
		}
	}
}

// Root is the folder of the module: the working directory, or one above it.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for folder := start; ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", fmt.Errorf("no go.mod in or above %s", start)
		}
	}
}

// Compile makes a program or library of this name with cc, and returns its path. Where all input is the same, that is
// the file of an earlier test, so do not change it.
func Compile(t testing.TB, name string, arguments ...string) string {
	t.Helper()
	var inputs []string
	headers := func(folder string) {
		found, err := filepath.Glob(filepath.Join(folder, "*.h"))
		require.NoError(t, err)
		inputs = append(inputs, found...)
	}
	for _, argument := range arguments {
		if folder, ok := strings.CutPrefix(argument, "-I"); ok {
			headers(folder)
		} else if information, err := os.Stat(argument); err == nil && information.Mode().IsRegular() {
			inputs = append(inputs, argument)
			headers(filepath.Dir(argument))
			headers(filepath.Join(filepath.Dir(argument), ".."))
		}
	}
	hash := sha256.New()
	_, _ = fmt.Fprintf(hash, "%q", arguments)
	for _, input := range inputs {
		file, err := os.Open(input)
		require.NoError(t, err)
		_, err = io.Copy(hash, file)
		require.NoError(t, err)
		_ = file.Close()
	}
	root, err := Root()
	require.NoError(t, err)
	folder := filepath.Join(root, "build", "_fixtures", fmt.Sprintf("%x", hash.Sum(nil)[:8]))
	made := filepath.Join(folder, name)
	if _, err := os.Stat(made); err == nil {
		return made
	}
	require.NoError(t, os.MkdirAll(folder, 0o755))
	unfinished, err := os.MkdirTemp(folder, "")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(filepath.Dir(unfinished)) }()
	unfinished = filepath.Join(unfinished, name)
	output, err := exec.Command("cc", append([]string{"-o", unfinished}, arguments...)...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.NoError(t, os.Rename(unfinished, made))
	return made
}
