package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/control"
)

// A thread that waits for each step goes on, and nothing reads memory whose contents are not back.
func TestResumeWithAnOrder(t *testing.T) {
	program := compileWithDriver(t, "order", majors[1])
	each(t, program, alone("steps", "leaving", "failing", "failing and freed", "failing inside", "others", "freed",
		"forked", "allocating", "ending", "handler", "destroyed", "reset", "exits", "arguments"), reaching(t), "TMS_DEBUG=invariants")
	each(t, program, [][]string{{"storage", buildRDMA(t, "1")}}, reaching(t), "TMS_DEBUG=invariants")
	o := run(t, program, []string{"busy"}, reaching(t)).succeeded(t)
	require.Contains(t, o.stderr, "a resume brings all back before it returns")
	o = run(t, program, []string{"behind"}, reaching(t), "TMS_DEBUG=invariants").succeeded(t)
	require.Contains(t, o.stderr, "a gated pause, or another order, keeps memory paused")
	o = run(t, program, []string{"not held"}).succeeded(t)
	require.Contains(t, o.stderr, "start the program with tms run")
	t.Run("failing, with a full stderr", func(t *testing.T) {
		// The order's own thread stands when it writes its line, and neither the resume nor the pause that follow wait for that.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		command := exec.CommandContext(ctx, program, "failing")
		command.Env = hostEnvironment(t, reaching(t))
		if sanitized {
			command.Env = sanitizedEnvironment(t, command.Env, program, filepath.Join(t.TempDir(), "report"), "failing")
		}
		reads, writes, err := os.Pipe()
		require.NoError(t, err)
		defer reads.Close()
		defer writes.Close()
		room, err := unix.FcntlInt(writes.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
		require.NoError(t, err)
		_, err = writes.Write(make([]byte, room))
		require.NoError(t, err)
		command.Stderr = writes
		require.NoError(t, command.Run())
	})
	t.Run("outside", func(t *testing.T) {
		sockets(t)
		h := steer(t, []string{program, "outside"}, reaching(t), "TMS_CONTROL=1", "TMS_DEBUG=invariants")
		h.listens()
		require.Equal(t, "begun", h.do("begin"))
		paused, client := make(chan control.Reply), h.dial()
		go func() { paused <- request(t, client, gated(control.Pause, "")) }()
		h.does(control.Pause)
		require.Equal(t, "goes on", h.do("go on"))
		reply := <-paused
		require.True(t, reply.OK, reply.Error)
		require.EqualValues(t, 16*mib, reply.Bytes)
		// What was on its way when the pause was asked for is the client's to bring back, too.
		client.Close()
		h.eventually(nonePaused)
		h.ends()
	})
	o = run(t, program, []string{"killed"}, reaching(t))
	require.Equal(t, syscall.SIGKILL, o.state.Sys().(syscall.WaitStatus).Signal())
}
