// Package hermetic runs the tests of a package so that nothing else on the machine reaches them, nor they it.
package hermetic

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// Main runs the tests, after what prepares them, and returns their exit code. XDG_RUNTIME_DIR and TMPDIR are folders of
// this process alone, so its processes meet nobody else's. Its children do not ignore the signals that it itself was
// started to ignore, as happens in the background of a script.
func Main(m *testing.M, prepare ...func() error) int {
	meeting, err := os.MkdirTemp("/tmp", "tms-test-") // whatever TMPDIR is, because a socket's path must be short
	if err != nil {
		return failed(err)
	}
	defer func() { _ = os.RemoveAll(meeting) }()
	files, err := os.MkdirTemp("", "tms-test-")
	if err != nil {
		return failed(err)
	}
	defer func() { _ = os.RemoveAll(files) }()
	if err := os.Chmod(files, 0o755); err != nil { // for programs that become another user
		return failed(err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM)
	go func() {
		number := (<-ended).(syscall.Signal)
		_, _ = os.RemoveAll(meeting), os.RemoveAll(files)
		os.Exit(128 + int(number))
	}()
	for name, folder := range map[string]string{"XDG_RUNTIME_DIR": meeting, "TMPDIR": files} {
		if err := os.Setenv(name, folder); err != nil {
			return failed(err)
		}
	}
	for _, do := range prepare {
		if err := do(); err != nil {
			return failed(err)
		}
	}
	return m.Run()
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
