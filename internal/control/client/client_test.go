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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

// This process itself answers, as each test defines; preload's tests have real processes.

// place makes a fresh directory for sockets.
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
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(directory, control.Name(pid)), Net: "unix"})
	require.NoError(t, err)
	socket.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = socket.Close() })
	return socket
}

func dial(t *testing.T, pid int) *client.Conn {
	t.Helper()
	c, err := client.Dial(pid)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestRepliesThatAreNone(t *testing.T) {
	listener := listen(t, place(t), os.Getpid())
	for text, words := range map[string]string{
		"":                                      "it has ended, or closed the connection",
		"{\n":                                   "its reply is not understood",
		`{"version":1,"id":7,"ok":true}` + "\n": "it has answered another request",
		`{"version":1,"ok":true`:                "it has ended",
		strings.Repeat("x", 100_000) + "\n":     "its reply is not understood",
	} {
		go func() {
			connection, err := listener.Accept()
			if err == nil {
				// A connection that is closed with a request in it would lose the reply.
				_, _ = bufio.NewReader(connection).ReadString('\n')
				_, _ = connection.Write([]byte(text))
				_ = connection.Close()
			}
		}()
		_, err := dial(t, os.Getpid()).Do(context.Background(), control.SteerRequest{Op: control.Status})
		require.ErrorIs(t, err, client.ErrUnreachable, "%.50q", text)
		require.ErrorContains(t, err, words, "%.50q", text)
	}
	// No reply at all: a stopped process.
	_, err := dial(t, os.Getpid()).Status(context.Background(), 20*time.Millisecond)
	require.ErrorIs(t, err, client.ErrUnreachable)
	require.ErrorContains(t, err, "does not answer")
}

// A driver that has shut down refuses what a status asks: the process is about to end.
func TestAProcessThatIsEnding(t *testing.T) {
	listener := listen(t, place(t), os.Getpid())
	go func() {
		connection, err := listener.Accept()
		if err == nil {
			_, _ = connection.Write([]byte(`{"version":1,"id":1,"ok":false,"code":4,"error":"unknown error (4)"}` + "\n"))
		}
	}()
	_, err := dial(t, os.Getpid()).Status(context.Background(), time.Minute)
	require.ErrorIs(t, err, client.ErrUnreachable)
	require.ErrorContains(t, err, "it is ending")
}

// A caller gets a reply only while the connection lives: requests over a connection that a context closes are undone.
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
		if _, err = c.Do(ctx, control.SteerRequest{Op: control.Status}); err == nil {
			answered++
			time.Sleep(20 * time.Microsecond)
			_, err = c.Do(context.Background(), control.SteerRequest{Op: control.Status})
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

// sweeping lists processes all the time, several at once, until it is stopped.
func sweeping() (stop func()) {
	var stopped atomic.Bool
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for !stopped.Load() {
				_, _ = client.List()
			}
		})
	}
	return func() {
		stopped.Store(true)
		all.Wait()
	}
}

// A dead process's socket is removed, but never that of a new process with the same number, which may come at any
// moment and, like internal/control/server, makes its socket under the directory's lock.
func TestSweepingLeavesTheLiving(t *testing.T) {
	directory := place(t)
	path := filepath.Join(directory, control.Name(os.Getpid()))
	stop := sweeping()
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
	stop()
	require.Eventually(t, func() bool {
		pids, err := client.List()
		_, gone := os.Stat(path)
		return err == nil && !slices.Contains(pids, os.Getpid()) && os.IsNotExist(gone)
	}, time.Minute, 5*time.Millisecond)
}

func TestRootReachesAll(t *testing.T) {
	hermetic.OtherUsers(t)
	directory := filepath.Join(filepath.Dir(place(t)), "tms-54321")
	require.NoError(t, os.Mkdir(directory, 0o700))
	// The other user's process is this program, told to listen there.
	program, socket := filepath.Join(filepath.Dir(directory), "listening"), filepath.Join(directory, "socket")
	content, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, content, 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(directory), 0o755))
	require.NoError(t, os.Chown(directory, 54321, -1))
	pid := listening(t, program, socket, &syscall.Credential{Uid: 54321, Gid: 54321})
	require.NoError(t, os.Rename(socket, filepath.Join(directory, control.Name(pid))))
	require.NoError(t, os.Chown(directory, 54322, -1))
	_, err = client.Dial(pid)
	require.ErrorContains(t, err, "belongs to user 54322")
	require.NoError(t, os.Chown(directory, 54321, -1))
	dial(t, pid)
}

// listening starts such a process, and returns its number once it listens.
func listening(t *testing.T, program, socket string, as *syscall.Credential) int {
	t.Helper()
	command := exec.Command(program, "-test.run=^TestListening$")
	command.Dir, command.Env = "/", []string{"LISTEN=" + socket}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "listens\n", line)
	return command.Process.Pid
}

// TestListening is that process.
func TestListening(t *testing.T) {
	if socket := os.Getenv("LISTEN"); socket != "" {
		_, err := net.Listen("unix", socket)
		require.NoError(t, err)
		fmt.Println("listens")
		time.Sleep(time.Minute)
	}
}

// A process with a number in another PID namespace is not the process of that number here.
func TestNumbersOfElsewhere(t *testing.T) {
	directory := place(t)
	const number = 1 << 30
	listen(t, directory, number)
	_, err := client.Dial(number)
	require.ErrorIs(t, err, client.ErrElsewhere)
	require.ErrorIs(t, err, client.ErrUnreachable)
	c, err := client.Connect(number)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), c.Peer)
	c.Close()
	// One socket of each kind, in two directories.
	second := filepath.Join(filepath.Dir(directory), fmt.Sprint("tms-", os.Geteuid()))
	require.NoError(t, os.Mkdir(second, 0o700))
	listen(t, second, os.Getpid())
	listening(t, os.Args[0], filepath.Join(directory, control.Name(os.Getpid())), nil)
	require.Equal(t, os.Getpid(), dial(t, os.Getpid()).Peer)
}

// A sweep removes what it found dead, in the directory where it found it, even when another directory takes that name.
func TestSweepingADirectoryThatIsReplaced(t *testing.T) {
	directory := place(t)
	other := filepath.Join(filepath.Dir(directory), "other")
	require.NoError(t, os.Mkdir(other, 0o700))
	listen(t, directory, os.Getpid())
	dead := filepath.Join(other, control.Name(os.Getpid()))
	stop := sweeping()
	exchange := func() {
		require.NoError(t, unix.Renameat2(unix.AT_FDCWD, directory, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE))
	}
	for range 2000 {
		require.NoError(t, listen(t, other, os.Getpid()).Close())
		exchange()
		exchange()
		_, err := os.Stat(filepath.Join(directory, control.Name(os.Getpid())))
		require.NoError(t, err)
		_ = os.Remove(dead)
	}
	stop()
}

func TestUnreachable(t *testing.T) {
	place(t)
	for pid, words := range map[int]string{os.Getpid(): "it does not listen", 1 << 30: "there is no such process"} {
		_, err := client.Dial(pid)
		require.ErrorIs(t, err, client.ErrUnreachable, fmt.Sprint(pid))
		require.ErrorContains(t, err, words)
	}
}
