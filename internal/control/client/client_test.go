package client_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/hermetic"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

// The process that answers is this one, as each test has it answer; preload's tests have real ones.

// place is a fresh directory of sockets.
func place(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("/tmp", "tms-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	t.Setenv("XDG_RUNTIME_DIR", directory)
	t.Setenv("TMPDIR", directory)
	sockets := filepath.Join(directory, "tms")
	require.NoError(t, control.MakeDirectory(sockets, os.Geteuid()))
	return sockets
}

func listen(t *testing.T, directory string, pid int) *net.UnixListener {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(directory, control.Name(pid)), Net: "unix"})
	require.NoError(t, err)
	listener.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func TestRepliesThatAreNone(t *testing.T) {
	listener := listen(t, place(t), os.Getpid())
	for text, words := range map[string]string{
		"":                                      "it has ended, or closed the connection",
		"{\n":                                   "its reply is not understood",
		`{"version":1,"id":7,"ok":true}` + "\n": "it answers what was not asked",
		`{"version":1,"ok":true`:                "it has ended",
		strings.Repeat("x", 100_000) + "\n":     "its reply is not understood",
	} {
		go func() {
			connection, err := listener.Accept()
			if err == nil {
				_, _ = connection.Write([]byte(text))
				time.Sleep(10 * time.Millisecond)
				_ = connection.Close()
			}
		}()
		c, err := client.Dial(os.Getpid())
		require.NoError(t, err)
		_, err = c.Do(context.Background(), control.Request{Op: control.Status})
		require.ErrorIs(t, err, client.ErrUnreachable, "%.50q", text)
		require.ErrorContains(t, err, words, "%.50q", text)
		c.Close()
	}
	// No reply at all: a stopped process.
	c, err := client.Dial(os.Getpid())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Status(context.Background(), 20*time.Millisecond)
	require.ErrorIs(t, err, client.ErrUnreachable)
	require.ErrorContains(t, err, "does not answer")
}

// A reply is the caller's only while the connection lives: what was asked over one that a context closes is undone.
func TestContextsThatEndWithTheReply(t *testing.T) {
	listener := listen(t, place(t), os.Getpid())
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				requests := bufio.NewScanner(connection)
				for id := 1; requests.Scan(); id++ {
					_, _ = fmt.Fprintf(connection, `{"version":1,"id":%d,"ok":true}`+"\n", id)
				}
				_ = connection.Close()
			}()
		}
	}()
	answered, refused := 0, 0
	for i := range 4000 {
		c, err := client.Dial(os.Getpid())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%400)*1500*time.Nanosecond)
		if _, err = c.Do(ctx, control.Request{Op: control.Status}); err == nil {
			answered++
			time.Sleep(20 * time.Microsecond)
			_, err = c.Do(context.Background(), control.Request{Op: control.Status})
			require.NoError(t, err, "at %d", i)
		} else {
			refused++
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		cancel()
		c.Close()
	}
	require.NotZero(t, answered)
	require.NotZero(t, refused)
}

// What a dead process has left is removed, never the socket of a new one of the same number, which comes at any
// moment, as preload/control.go does: under the lock of the directory.
func TestSweepingLeavesTheLiving(t *testing.T) {
	directory := place(t)
	path := filepath.Join(directory, control.Name(os.Getpid()))
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = client.List()
				}
			}
		})
	}
	for range 300 {
		lock, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Flock(lock, unix.LOCK_EX))
		_ = os.Remove(path)
		listener := listen(t, directory, os.Getpid())
		require.NoError(t, unix.Close(lock))
		time.Sleep(100 * time.Microsecond)
		_, err = os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, listener.Close())
	}
	close(stop)
	all.Wait()
	require.Eventually(t, func() bool {
		pids, err := client.List()
		_, gone := os.Stat(path)
		return err == nil && !slices.Contains(pids, os.Getpid()) && os.IsNotExist(gone)
	}, 10*time.Second, time.Millisecond)
}

func TestRootReachesAll(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can")
	}
	directory := filepath.Join(filepath.Dir(place(t)), "tms-54321")
	require.NoError(t, os.Mkdir(directory, 0o700))
	sleeping := exec.Command("sleep", "60")
	sleeping.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	require.NoError(t, sleeping.Start())
	defer func() {
		_ = sleeping.Process.Kill()
		_ = sleeping.Wait()
	}()
	listen(t, directory, sleeping.Process.Pid)
	require.NoError(t, os.Chown(directory, 54322, -1))
	_, err := client.Dial(sleeping.Process.Pid)
	require.ErrorContains(t, err, "belongs to user 54322")
	require.NoError(t, os.Chown(directory, 54321, -1))
	c, err := client.Dial(sleeping.Process.Pid)
	require.NoError(t, err)
	c.Close()
}

func TestUnreachable(t *testing.T) {
	place(t)
	for pid, words := range map[int]string{os.Getpid(): "it does not listen", 1 << 30: "there is no such process"} {
		_, err := client.Dial(pid)
		require.ErrorIs(t, err, client.ErrUnreachable, fmt.Sprint(pid))
		require.ErrorContains(t, err, words)
	}
}
