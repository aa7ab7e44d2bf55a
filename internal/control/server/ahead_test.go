package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/control/server"
	"tms/internal/machine/process"
)

// A request ahead ends as its client says, or with the client; until then the client may ask only for that.
func TestARequestAhead(t *testing.T) {
	f := serve(t)
	ended := make(chan string, 1)
	f.performs(func(task *server.Task, _ *server.Outcome) error {
		if task.Request.Ahead == nil {
			return nil
		}
		select {
		case <-task.Complete():
			ended <- "complete"
			return nil
		case <-task.Cancel():
			ended <- "cancelled"
			return errors.New("cancelled")
		}
	})
	ahead := control.SteerRequest{Op: control.Resume, Ahead: map[string]uint64{"GPU-1": 0}}
	for op, how := range map[string]string{control.Complete: "complete", control.Undo: "cancelled"} {
		c := dial(t)
		ends, done := make(chan control.SteerRequest, 1), make(chan control.Reply, 1)
		go func() {
			reply, err := c.DoAhead(context.Background(), ahead, ends)
			assert.NoError(t, err)
			done <- reply
		}()
		ends <- control.SteerRequest{Op: op}
		require.Equal(t, how == "complete", (<-done).OK)
		require.Equal(t, how, <-ended)
		require.True(t, do(t, c, control.SteerRequest{Op: control.Undo}).OK, "the connection goes on")
	}
	require.Contains(t, do(t, dial(t), control.SteerRequest{Op: control.Complete}).Error, "no request of this client waits")

	c := dial(t)
	ctx, leave := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := c.DoAhead(ctx, ahead, nil)
		gone <- err
	}()
	require.Eventually(t, func() bool {
		var begun bool
		f.with(func() { begun = f.tasks[len(f.tasks)-1].Request.Ahead != nil })
		return begun
	}, time.Minute, time.Millisecond)
	leave()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Equal(t, "cancelled", <-ended)

	refused := control.SteerRequest{Op: control.Resume, Ahead: map[string]uint64{"GPU-1": 0}, Wait: 1}
	require.Contains(t, do(t, dial(t), refused).Error, "ahead excludes everything and wait")
}

// TestAsksAhead is the client of TestAStoppedClientAhead.
func TestAsksAhead(t *testing.T) {
	path := os.Getenv(aheadVariable)
	if path == "" {
		t.Skip("TestAStoppedClientAhead runs it")
	}
	socket, err := net.Dial("unix", path)
	require.NoError(t, err)
	_, err = socket.Write(control.Line(control.SteerRequest{Version: control.Version, Op: control.Resume,
		Ahead: map[string]uint64{"GPU-1": 0}}))
	require.NoError(t, err)
	_, _ = io.Copy(os.Stderr, socket) // the test's own words go to standard output
}

// A client that is stopped cannot end its request, for which the program's calls wait: the request ends without it.
func TestAStoppedClientAhead(t *testing.T) {
	defer func(before time.Duration) { process.Patience = before }(process.Patience)
	process.Patience = 50 * time.Millisecond
	f := serve(t)
	begun, ended := make(chan bool, 1), make(chan bool, 1)
	f.performs(func(task *server.Task, _ *server.Outcome) error {
		begun <- true
		<-task.Cancel()
		ended <- true
		return errors.New("cancelled")
	})
	asks := exec.Command(os.Args[0], "-test.run=^TestAsksAhead$")
	asks.Env = append(os.Environ(), aheadVariable+"="+control.Directories("", f.temporary, os.Geteuid())[0]+"/"+
		control.Name(os.Getpid()))
	var says bytes.Buffer
	asks.Stdout = &says
	answers, err := asks.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, asks.Start())
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(answers).ReadString('\n')
		answer <- line
	}()
	defer func() { _ = asks.Process.Kill(); _ = asks.Wait() }()
	select {
	case <-begun:
	case line := <-answer: // it has no answer yet
		_ = asks.Wait()
		require.Fail(t, "the client has ended", "%s%s", line, &says)
	}
	require.Empty(t, ended)
	require.NoError(t, asks.Process.Signal(syscall.SIGSTOP))
	<-ended

	// It hears of that once it goes on, and keeps its connection.
	require.NoError(t, asks.Process.Signal(syscall.SIGCONT))
	require.Contains(t, <-answer, "cancelled")
}
