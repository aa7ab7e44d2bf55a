package server_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/server"
)

// The process keeps descriptors at its socket, which lends copies of them.
func TestKeptDescriptors(t *testing.T) {
	f := serve(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	of := func(descriptor int) (s unix.Stat_t) {
		require.NoError(t, unix.Fstat(descriptor, &s))
		return s
	}
	for range 2 { // the second replaces the first
		require.NoError(t, f.held.Put(5, 9, int(file.Fd())))
	}
	for range 3 {
		reply, came, err := server.Ask(f.Directories, os.Getpid(), control.LendRequest{Op: control.Lend, Memory: 5}, -1)
		require.NoError(t, err)
		require.EqualValues(t, []uint64{9, 9}, []uint64{reply.Bytes, reply.Extent})
		require.Equal(t, of(int(file.Fd())).Ino, of(came).Ino)
		require.NoError(t, unix.Close(came))
	}
	require.ErrorContains(t, f.held.Put(5, 9, -1), "no room for a descriptor")
	for range 2 {
		require.NoError(t, f.held.Drop(5))
	}
	reply, came, err := server.Ask(f.Directories, os.Getpid(), control.LendRequest{Op: control.Lend, Memory: 5}, -1)
	require.NoError(t, err)
	require.EqualValues(t, 7, reply.Bytes, "the process is asked")
	require.NoError(t, unix.Close(came))
	onlyHere(t, file)
}

// onlyHere waits until a file has no descriptor but the test's own.
func onlyHere(t *testing.T, file *os.File) {
	t.Helper()
	require.Eventually(t, func() bool {
		held := 0
		entries, _ := os.ReadDir("/proc/self/fd")
		for _, entry := range entries {
			if to, _ := os.Readlink("/proc/self/fd/" + entry.Name()); to == file.Name() {
				held++
			}
		}
		return held == 1
	}, time.Minute, 5*time.Millisecond)
}

// The thread keeps descriptors of a process that others cannot reach, and later lets others in.
func TestHeldBeforeOthersCanCome(t *testing.T) {
	f := &fake{temporary: filepath.Join(t.TempDir(), "file")}
	require.NoError(t, os.WriteFile(f.temporary, nil, 0o600)) // no directory can be made below it
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", f.temporary)
	serves := server.New(f)
	for range 2 {
		require.NoError(t, serves.Hold())
	}
	require.Error(t, server.Tell(f.Directories, os.Getpid(), control.SteerRequest{Op: control.Status}))
	require.NoError(t, serves.Held().Put(5, 0, 0))
	require.Error(t, serves.Serve())
	reply, came, err := server.Ask(f.Directories, os.Getpid(), control.LendRequest{Op: control.Lend, Memory: 5}, -1)
	require.NoError(t, err)
	require.True(t, reply.OK)
	require.NoError(t, unix.Close(came))
	require.NoError(t, os.Remove(f.temporary))
	require.NoError(t, os.Mkdir(f.temporary, 0o700))
	require.NoError(t, serves.Serve())
	require.NoError(t, server.Tell(f.Directories, os.Getpid(), control.SteerRequest{Op: control.Status}))
	require.NoError(t, serves.Hold())
	require.NoError(t, serves.Held().Drop(5))
	f.with(func() { f.temporary = filepath.Join(f.temporary, "gone") })
}

// A pause or resume that the thread has handed on needs the thread for its files.
func TestDescriptorsAreKeptForTheTaskThatRuns(t *testing.T) {
	f := serve(t)
	f.performs(func(*server.Task, *server.Outcome) (err error) {
		number, kept := f.held.Keep(0)
		copied, err := f.held.Copy(number)
		f.held.Close(copied)
		return errors.Join(kept, err, f.held.Drop(number))
	})
	reply, err := dial(t).Do(context.Background(), all)
	require.NoError(t, err)
	require.True(t, reply.OK, reply.Error)
}

// Descriptors that are kept leave numbers for clients, of which one must come to resume the process.
func TestKeptDescriptorsLeaveRoomForClients(t *testing.T) {
	f := serve(t)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	open, err := os.ReadDir("/proc/self/fd") // earlier tests' servers have some
	require.NoError(t, err)
	few := unix.Rlimit{Cur: uint64(len(open) + 150), Max: limit.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	kept := uint64(0)
	for ; kept < 200; kept++ {
		err := f.held.Put(100+kept, 0, 0)
		if err != nil {
			require.ErrorContains(t, err, "no room for a descriptor")
			break
		}
	}
	require.Greater(t, kept, uint64(100))
	c := dial(t)
	reply, err := c.Do(context.Background(), control.SteerRequest{Op: control.Status})
	require.NoError(t, err)
	require.True(t, reply.OK)
	for share := range kept + 1 {
		require.NoError(t, f.held.Drop(100+share))
	}
}

// Memory is lent with its descriptor. While one lend fails or panics, others wait, and are then done.
func TestLends(t *testing.T) {
	f := serve(t)
	lend := func() (control.Reply, int) {
		reply, descriptor, err := server.Ask(f.Directories, os.Getpid(), control.LendRequest{ID: 3, Op: control.Lend}, -1)
		require.NoError(t, err)
		if descriptor >= 0 {
			require.NoError(t, unix.Close(descriptor))
		}
		return reply, descriptor
	}
	for range 3 {
		reply, descriptor := lend()
		require.True(t, reply.OK, reply.Error)
		require.EqualValues(t, 7, reply.Bytes)
		require.EqualValues(t, 3, reply.ID)
		require.GreaterOrEqual(t, descriptor, 0)
		f.with(func() {
			f.lend = func() (int, control.Reply, error) { return -1, control.Reply{}, errors.New("paused") }
		})
		reply, descriptor = lend()
		require.Equal(t, "paused", reply.Error)
		require.Equal(t, -1, descriptor)
		// The descriptor cannot be sent, and the process cannot forget the importer.
		f.with(func() {
			f.lend = func() (int, control.Reply, error) { return 1 << 20, control.Reply{}, nil }
			f.returned = func() { panic("a defect") }
		})
		reply, _ = lend()
		require.False(t, reply.OK)
		require.NotEmpty(t, reply.Error)
		f.with(func() { f.lend, f.returned = nil, nil })
	}
	require.Equal(t, 3, now(f, &f.returns))
}

// An extent is the process's until the keeper has answered, however late and how often it is asked. It is given once.
func TestAGiveIsQueued(t *testing.T) {
	f := serve(t)
	held := f.held
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	keeper, err := server.Listen(f.Directories, control.Keeper, time.Minute)
	require.NoError(t, err)
	give := func() uint64 {
		t.Helper()
		number, err := held.Keep(int(file.Fd()))
		require.NoError(t, err)
		for range 2 { // the second changes nothing
			require.NoError(t, held.Give(0, number))
		}
		return number
	}
	gets := func(answer func(client int)) {
		t.Helper()
		client := accepted(keeper)
		line, came, err := server.Receive(client)
		require.NoError(t, err)
		require.Contains(t, string(line), `"op":"give"`)
		require.GreaterOrEqual(t, came, 0)
		require.NoError(t, unix.Close(came))
		answer(client)
		require.NoError(t, unix.Close(client))
	}
	give()
	dropped := give()
	gets(func(int) {})
	gets(func(client int) {
		require.NoError(t, held.Drop(dropped))
		require.NoError(t, server.Send(client, control.Reply{OK: true}, -1, 0))
	})
	onlyHere(t, file)

	require.NoError(t, unix.Close(keeper.Descriptor)) // it has ended
	give()
	onlyHere(t, file)
}

// A directory of another user has no keeper of this one, so the process does not hold an extent back because of it.
func TestAGiveBesideAnotherUsersDirectory(t *testing.T) {
	hermetic.OtherUsers(t)
	f := serve(t)
	runtime := t.TempDir()
	f.with(func() { f.runtime = runtime })
	directory := control.Directories(runtime, "", 0)[0]
	require.NoError(t, os.Mkdir(directory, 0o700))
	require.NoError(t, os.Chown(directory, 65534, 65534))
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	give := func() {
		number, err := f.held.Keep(int(file.Fd()))
		require.NoError(t, err)
		require.NoError(t, f.held.Give(0, number))
		onlyHere(t, file)
	}
	if !hermetic.Quick {
		give() // no keeper comes for ten seconds
	}
	keeper, err := server.Listen(func() (string, string) { return "", now(f, &f.temporary) }, control.Keeper, time.Minute)
	require.NoError(t, err)
	require.NoError(t, unix.Close(keeper.Descriptor)) // it has ended
	give()
}

// accepted waits for the next client of a keeper.
func accepted(keeper server.Socket) (client int) {
	events := []unix.PollFd{{Fd: int32(keeper.Descriptor), Events: unix.POLLIN}}
	for events[0].Revents == 0 { // accept does not wait for a client, and a signal of Go's scheduler ends a poll
		_, _ = unix.Poll(events, -1)
	}
	client, _, _ = unix.Accept4(keeper.Descriptor, unix.SOCK_CLOEXEC)
	return client
}
