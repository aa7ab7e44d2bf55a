package hermetic

import (
	"io"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Holder is a program that has something others wait for, such as a lock, until its standard input ends.
type Holder struct {
	t       testing.TB
	command *exec.Cmd
	input   io.Closer
	output  io.Reader
}

// Hold starts a program, in a process group of its own, that writes a byte once it has what it holds.
func Hold(t testing.TB, command *exec.Cmd) *Holder {
	t.Helper()
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := command.StdinPipe()
	require.NoError(t, err)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	h := &Holder{t, command, input, output}
	t.Cleanup(func() { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) })
	_, err = output.Read(make([]byte, 1))
	require.NoError(t, err)
	return h
}

// Signal sends all its processes a signal.
func (h *Holder) Signal(number syscall.Signal) {
	h.t.Helper()
	require.NoError(h.t, syscall.Kill(-h.command.Process.Pid, number))
}

// End makes it let go.
func (h *Holder) End() {
	h.t.Helper()
	require.NoError(h.t, h.input.Close())
	_, _ = io.Copy(io.Discard, h.output)
	require.NoError(h.t, h.command.Wait())
}
