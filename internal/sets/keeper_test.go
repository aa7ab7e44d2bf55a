package sets_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/server"
	"tms/internal/sets"
	"tms/vmm/cuda"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

// serving starts a keeper in this process, which is also its client, in a fresh place. pymodule/tests/test_kept.py has
// keepers and programs of their own.
func serving(t *testing.T) (place string) {
	t.Helper()
	place, err := os.MkdirTemp("/tmp", "tms-test-")
	require.NoError(t, err)
	t.Setenv("XDG_RUNTIME_DIR", place)
	t.Setenv("TMPDIR", place)
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- sets.NewKeeper().Serve(ctx, false, nil) }()
	t.Cleanup(func() {
		end()
		require.NoError(t, <-ended)
		require.NoError(t, os.RemoveAll(place))
	})
	require.Eventually(t, func() bool { return asked(t, control.SetRequest{Op: control.List}).OK }, time.Minute,
		5*time.Millisecond)
	return place
}

func directories() (runtime, temporary string) {
	return os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR")
}

// asked sends a request, with a file of these contents if there are any.
func asked(t *testing.T, r control.Request, contents ...string) control.Reply {
	reply, _ := exchange(t, r, contents...)
	return reply
}

// exchange also returns the contents of the file that came.
func exchange(t *testing.T, r control.Request, contents ...string) (control.Reply, string) {
	t.Helper()
	given := -1
	if len(contents) > 0 {
		file, err := os.CreateTemp(t.TempDir(), "")
		require.NoError(t, err)
		defer file.Close()
		_, err = file.WriteString(contents[0])
		require.NoError(t, err)
		given = int(file.Fd())
	}
	reply, descriptor, err := server.Ask(directories, control.Keeper, r.Sent(7), given)
	if err != nil {
		return control.Reply{Error: err.Error()}, ""
	}
	require.EqualValues(t, 7, reply.ID)
	if descriptor < 0 {
		return reply, ""
	}
	file := os.NewFile(uintptr(descriptor), "")
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
	require.NoError(t, err)
	return reply, string(text)
}

// make1 makes a set with one chunk.
func make1(t *testing.T, id uint64, name, contents string) {
	t.Helper()
	put := control.SetRequest{Op: control.Put, Set: id, Name: name, Device: "GPU-1", Chunk: id + 1, Bytes: 5}
	require.True(t, asked(t, put, contents).OK)
}

func sealed(t *testing.T, id uint64, manifest string) control.Reply {
	t.Helper()
	return asked(t, control.SetRequest{Op: control.Seal, Set: id, Before: 1}, manifest)
}

func TestASet(t *testing.T) {
	serving(t)
	make1(t, 10, "a", "chunk")
	require.Equal(t, int(cuda.SymbolNotFound), asked(t, control.SetRequest{Op: control.Open, Name: "a"}).Code)
	require.True(t, sealed(t, 10, "manifest").OK)
	reply, manifest := exchange(t, control.SetRequest{Op: control.Open, Name: "a"})
	require.True(t, reply.OK)
	require.Equal(t, "manifest", manifest)
	got := reply.Sets[0]
	require.Positive(t, got.Sealed)
	require.Equal(t, got.Sealed, got.Used)
	got.Sealed, got.Used = 0, 0
	require.Equal(t, control.KeptSet{ID: 10, Name: "a", Device: "GPU-1",
		Chunks: []control.KeptChunk{{ID: 11, Bytes: 5}}, Bytes: 5, Version: 1, Users: []int{os.Getpid()}}, got)
	reply, chunk := exchange(t, control.LendRequest{Op: control.Lend, Memory: 11})
	require.Equal(t, "chunk", chunk)
	require.EqualValues(t, []any{uint64(5), uint64(5), "GPU-1"}, []any{reply.Bytes, reply.Extent, reply.Device})
	require.Equal(t, int(cuda.InvalidHandle), asked(t, control.LendRequest{Op: control.Lend, Memory: 12}).Code)

	// Dropped, it stays until the last close: it was open twice, by the seal and the open.
	require.True(t, asked(t, control.SetRequest{Op: control.Drop, Name: "a"}).OK)
	require.False(t, asked(t, control.SetRequest{Op: control.Drop, Name: "a"}).OK)
	require.False(t, asked(t, control.SetRequest{Op: control.Open, Name: "a"}).OK)
	for range 2 {
		require.True(t, asked(t, control.LendRequest{Op: control.Lend, Memory: 11}).OK)
		require.Len(t, asked(t, control.SetRequest{Op: control.List}).Sets, 1)
		require.True(t, asked(t, control.SetRequest{Op: control.Close, Set: 10}).OK)
	}
	require.Empty(t, asked(t, control.SetRequest{Op: control.List}).Sets)
	require.False(t, asked(t, control.LendRequest{Op: control.Lend, Memory: 11}).OK)
}

func TestRequestsThatAreRefused(t *testing.T) {
	serving(t)
	make1(t, 10, "a", "chunk")
	for words, r := range map[string]control.Request{
		"no descriptor came":        control.SetRequest{Op: control.Seal, Set: 10, Before: 1},
		"the keeper answers no":     control.SteerRequest{Op: control.Status},
		"there is no operation":     control.SetRequest{Op: "dance"},
		"there is no complete set":  control.SetRequest{Op: control.Open, Name: "b"},
		"does not have this memory": control.LendRequest{Op: control.Lend, Memory: 99},
	} {
		reply := asked(t, r)
		require.False(t, reply.OK, words)
		require.NotZero(t, reply.Code, words)
		require.Contains(t, reply.Error, words)
	}
	for words, r := range map[string]control.SetRequest{
		"a set has a name of 1 to 255 bytes": {Op: control.Put, Set: 20, Chunk: 3, Bytes: 1},
		"1 to 255 bytes":                     {Op: control.Put, Set: 20, Name: strings.Repeat("x", 256), Chunk: 3, Bytes: 1},
		"publish it again":                   {Op: control.Put, Set: 20, Name: "b", Chunk: 3, Bytes: 1, Before: 1},
		"what this set had so far":           {Op: control.Put, Set: 10, Chunk: 13, Bytes: 1},
		"it does not have":                   {Op: control.Seal, Set: 20},
		"other memory by that number":        {Op: control.Put, Set: 20, Name: "b", Chunk: 11, Bytes: 1},
	} {
		require.Contains(t, asked(t, r, "file").Error, words)
	}
	require.Len(t, asked(t, control.SetRequest{Op: control.List}).Sets, 1)
	require.True(t, sealed(t, 10, "").OK)
	require.Contains(t, sealed(t, 10, "").Error, "publish it again")
	require.Contains(t, asked(t, control.SetRequest{Op: control.Put, Set: 10, Chunk: 12, Bytes: 1, Before: 1}, "x").Error,
		"publish it again")
}

// A set is the business of the process that makes it alone.
func TestAnotherProcessSealsNothing(t *testing.T) {
	place := serving(t)
	make1(t, 10, "a", "chunk")
	out, err := exec.Command("python3", "-c", fmt.Sprintf(`
import socket
for op in ("seal", "close"):
    s = socket.socket(socket.AF_UNIX)
    s.connect(%q)
    socket.send_fds(s, [b'{"version":1,"op":"%%s","set":10}\n' %% op.encode()], [0])
    print(s.recv(1000))
`, filepath.Join(place, "tms", "keeper.sock"))).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "publish it again")
	require.True(t, sealed(t, 10, "").OK)
}

// A later set of the name has it, even if the clock says otherwise, and only then.
func TestOneNameForTwo(t *testing.T) {
	serving(t)
	for id := uint64(10); id < 100; id += 10 {
		make1(t, id, "a", fmt.Sprint(id))
		if id > 10 {
			_, manifest := exchange(t, control.SetRequest{Op: control.Open, Name: "a"})
			require.Equal(t, fmt.Sprint(id-10), manifest)
		}
		require.True(t, sealed(t, id, fmt.Sprint(id)).OK)
	}
	replaced := 0
	for _, s := range asked(t, control.SetRequest{Op: control.List}).Sets {
		if s.Replaced {
			replaced++
		}
	}
	require.Equal(t, 8, replaced)
}

// A copy takes over the name only from its original, and only if no other process has the original open.
func TestACopyOfASet(t *testing.T) {
	place := serving(t)
	make1(t, 10, "a", "chunk")
	require.True(t, sealed(t, 10, "manifest").OK)
	copyOf := func(id, of uint64) control.Reply {
		put := control.SetRequest{Op: control.Put, Set: id, Name: "a", Device: "GPU-1", Chunk: id + 1, Bytes: 5,
			To: control.ToHost}
		require.True(t, asked(t, put, "copy").OK)
		return asked(t, control.SetRequest{Op: control.Seal, Set: id, Before: 1, Original: of}, "manifest")
	}
	other := exec.Command("python3", "-c", fmt.Sprintf(`
import socket
s = socket.socket(socket.AF_UNIX)
s.connect(%q)
s.sendall(b'{"version":1,"op":"open","name":"a"}\n')
print(s.recv(1000), flush=True)
input()
`, filepath.Join(place, "tms", "keeper.sock")))
	in, err := other.StdinPipe()
	require.NoError(t, err)
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	_, err = out.Read(make([]byte, 1000))
	require.NoError(t, err)
	refused := copyOf(20, 10)
	require.Contains(t, refused.Error, fmt.Sprintf("process %d has it open", other.Process.Pid))
	require.NoError(t, in.Close())
	_ = other.Wait()
	require.Contains(t, copyOf(30, 20).Error, "just replaced or dropped the set")
	require.True(t, copyOf(40, 10).OK)
	reply, _ := exchange(t, control.SetRequest{Op: control.Open, Name: "a"})
	require.Equal(t, []any{uint64(40), control.ToHost}, []any{reply.Sets[0].ID, reply.Sets[0].Place})
	require.Contains(t, copyOf(50, 10).Error, "just replaced or dropped the set")
	require.Contains(t, asked(t, control.SetRequest{Op: control.Put, Set: 60, Name: "b", Chunk: 61, Bytes: 5, To: "moon"},
		"x").Error, "no place for contents")
}

// Whatever a client sends or leaves out, no other client is harmed, and no descriptor stays open. An extent has one
// owner at any time: the client that took it, the keeper, or a set that the keeper has.
func TestReservedMemory(t *testing.T) {
	serving(t)
	zero, one, extents := 0, 1, func() map[int]uint64 { return asked(t, control.SetRequest{Op: control.Take}).Reserved }
	take := control.SetRequest{Op: control.Take, Node: &one, Bytes: cuda.HostExtent}
	require.Contains(t, asked(t, control.SetRequest{Op: control.Give, Node: &one}).Error, "needs a node, and a descriptor")
	require.Contains(t, asked(t, control.SetRequest{Op: control.Give}, "x").Error, "needs a node, and a descriptor")
	require.EqualValues(t, cuda.OutOfMemory, asked(t, take).Code)
	for _, contents := range []string{"a", "b"} {
		require.True(t, asked(t, control.SetRequest{Op: control.Give, Node: &one}, contents).OK)
	}
	require.Equal(t, map[int]uint64{1: 2 * cuda.HostExtent}, extents())
	take.Node = &zero
	require.EqualValues(t, cuda.OutOfMemory, asked(t, take).Code)
	take.Node = &one
	for _, contents := range []string{"b", "a"} {
		reply, came := exchange(t, take)
		require.True(t, reply.OK)
		require.Equal(t, contents, came)
	}
	require.EqualValues(t, cuda.OutOfMemory, asked(t, take).Code)

	put := control.SetRequest{Op: control.Put, Set: 5, Name: "set", Device: "GPU", To: control.ToHost, Chunk: 51,
		Bytes: cuda.HostExtent, Node: &one}
	require.True(t, asked(t, put, "first").OK)
	put.Chunk, put.Before, put.Bytes, put.Joins = 52, 1, 7, true
	require.True(t, asked(t, put, "more").OK)
	reply := asked(t, control.SetRequest{Op: control.Seal, Set: 5, Before: 1}, "manifest")
	require.Equal(t, []control.KeptChunk{{ID: 51, Bytes: cuda.HostExtent + 7, Node: &one, More: []uint64{52}}},
		reply.Sets[0].Chunks)
	_, came := exchange(t, control.LendRequest{Op: control.Lend, Memory: 52})
	require.Equal(t, "more", came)
	require.Zero(t, extents()[1])
	require.True(t, asked(t, control.SetRequest{Op: control.Close, Set: 5}).OK)
	require.True(t, asked(t, control.SetRequest{Op: control.Drop, Name: "set"}).OK)
	require.EqualValues(t, 2*cuda.HostExtent, extents()[1])
}

// The keeper takes back what a request has begun whose client did not get the reply.
func TestClientsThatGiveUp(t *testing.T) {
	place := serving(t)
	node := 0
	make1(t, 10, "a", "chunk")
	require.True(t, sealed(t, 10, "manifest").OK)
	require.True(t, asked(t, control.SetRequest{Op: control.Close, Set: 10}).OK)
	require.True(t, asked(t, control.SetRequest{Op: control.Give, Node: &node}, "extent").OK)
	held := func() (extents uint64, users []int) {
		return asked(t, control.SetRequest{Op: control.Take}).Reserved[0] / cuda.HostExtent,
			asked(t, control.SetRequest{Op: control.List}).Sets[0].Users
	}
	ask := func(line string, confirms bool) {
		connection, err := net.Dial("unix", filepath.Join(place, "tms", "keeper.sock"))
		require.NoError(t, err)
		defer connection.Close()
		_, err = connection.Write([]byte(line + "\n"))
		require.NoError(t, err)
		_, err = connection.Read(make([]byte, 1)) // the reply has come, and nothing says that it was read
		require.NoError(t, err)
		if confirms {
			_, err = connection.Write([]byte("\n"))
			require.NoError(t, err)
		}
	}
	open := `{"version":1,"op":"open","name":"a","confirm":true}`
	take := fmt.Sprintf(`{"version":1,"op":"take","node":0,"bytes":%d,"confirm":true}`, cuda.HostExtent)
	for range 3 {
		ask(open, false)
		ask(take, false)
	}
	require.Eventually(t, func() bool {
		extents, users := held()
		return extents == 1 && len(users) == 0
	}, time.Minute, 5*time.Millisecond)
	ask(open, true)
	ask(take, true)
	require.Eventually(t, func() bool {
		extents, users := held()
		return extents == 0 && len(users) == 1
	}, time.Minute, 5*time.Millisecond)
}

// A keeper that can hold no more refuses that, and goes on to answer.
func TestTheLimitOfDescriptors(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	few := unix.Rlimit{Cur: uint64(2*descriptors(t) + 100), Max: before.Max} // earlier tests' keepers have some
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
	serving(t)
	refused := control.Reply{OK: true}
	node, given := 0, 0
	for ; given < 500 && refused.OK; given++ {
		refused = asked(t, control.SetRequest{Op: control.Give, Node: &node}, "extent")
	}
	require.Contains(t, refused.Error, "its limit allows no more (ulimit -n "+fmt.Sprint(few.Cur))
	require.Contains(t, asked(t, control.SetRequest{Op: control.Put, Set: 10, Name: "a", Chunk: 11, Bytes: 1}, "x").Error,
		"its limit allows no more")
	for range 100 {
		require.EqualValues(t, given-1, asked(t, control.SetRequest{Op: control.Take}).Reserved[0]/cuda.HostExtent)
	}
	require.True(t, asked(t, control.SetRequest{Op: control.Take, Node: &node, Bytes: cuda.HostExtent}).OK)
	require.True(t, asked(t, control.SetRequest{Op: control.Give, Node: &node}, "extent").OK)
}

func TestClientsThatMisbehave(t *testing.T) {
	place := serving(t)
	path := filepath.Join(place, "tms", "keeper.sock")
	before := descriptors(t)
	rights := unix.UnixRights(0, 1, 2)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			connection, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				return
			}
			text := []string{"\n", "{", `{"version":1,"op":"list"}` + "\n" + `{"version":1,"op":"list"}` + "\n", "\x00\n"}[i%4]
			_, _, _ = connection.WriteMsgUnix([]byte(text), rights, nil)
			if i%8 > 3 {
				_ = connection.CloseWrite()
				_, _ = io.ReadAll(connection)
			}
			_ = connection.Close()
		})
	}
	all.Wait()
	require.True(t, asked(t, control.SetRequest{Op: control.List}).OK)
	require.Eventually(t, func() bool { return descriptors(t) <= before }, time.Minute, 5*time.Millisecond)
}

func TestOneKeeper(t *testing.T) {
	place := serving(t)
	make1(t, 10, "a", "chunk")
	require.ErrorIs(t, sets.NewKeeper().Serve(context.Background(), true, nil), server.ErrAnswered)

	// It comes back when its directory is removed, with what it has, and keeps no socket that is out of reach.
	before := descriptors(t)
	for range 3 {
		require.NoError(t, os.RemoveAll(filepath.Join(place, "tms")))
		require.Eventually(t, func() bool { return len(asked(t, control.SetRequest{Op: control.List}).Sets) == 1 },
			time.Minute, 5*time.Millisecond)
	}
	require.Eventually(t, func() bool { return descriptors(t) <= before }, time.Minute, 5*time.Millisecond)
}

// descriptors returns how many are open.
func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestStartSaysWhyNot(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	require.ErrorContains(t, sets.StartKeeper("/nonexistent"), "the keeper cannot be started")
	require.ErrorContains(t, sets.StartKeeper("/bin/false"), "the keeper has no socket")
	_, _, err := sets.Ask(control.SetRequest{Op: control.List}, -1)
	require.True(t, errors.Is(err, cuda.NotSupported) || cuda.Code(err) == int(cuda.NotSupported), err)
}

// A set of a snapshot takes its name only where no other version has had it since. By its number it is found anyway.
func TestASetOfASnapshot(t *testing.T) {
	serving(t)
	restored := func(id, version uint64, nameless bool) control.KeptSet {
		t.Helper()
		make1(t, id, "a", "chunk")
		reply := asked(t, control.SetRequest{Op: control.List})
		require.True(t, func() bool {
			for _, s := range reply.Sets {
				if s.ID == id {
					return s.Maker == os.Getpid() && s.Sealed == 0
				}
			}
			return false
		}())
		require.False(t, asked(t, control.SetRequest{Op: control.Open, Set: id, Name: "a"}).OK, "it is not complete")
		reply = asked(t, control.SetRequest{Op: control.Seal, Set: id, Before: 1, Restored: version, Nameless: nameless},
			fmt.Sprint("manifest ", id))
		require.True(t, reply.OK, reply.Error)
		require.Equal(t, version, reply.Sets[0].Version)
		require.Zero(t, reply.Sets[0].Maker)
		opened, manifest := exchange(t, control.SetRequest{Op: control.Open, Set: id, Name: "a"})
		require.True(t, opened.OK)
		require.Equal(t, fmt.Sprint("manifest ", id), manifest)
		require.True(t, asked(t, control.SetRequest{Op: control.Close, Set: id}).OK)
		return reply.Sets[0]
	}
	named := func(id uint64) {
		t.Helper()
		require.Equal(t, id, asked(t, control.SetRequest{Op: control.Open, Name: "a"}).Sets[0].ID)
		require.True(t, asked(t, control.SetRequest{Op: control.Close, Set: id}).OK)
	}
	require.True(t, restored(10, 4, true).Replaced)
	require.False(t, asked(t, control.SetRequest{Op: control.Open, Name: "a"}).OK)
	require.True(t, restored(20, 4, false).Replaced, "a version as high is in use")
	require.False(t, restored(30, 5, false).Replaced)
	named(30)
	require.True(t, restored(40, 6, false).Replaced, "another set has the name")
	named(30)
	for _, id := range []uint64{10, 20, 40} {
		require.True(t, asked(t, control.SetRequest{Op: control.Close, Set: id}).OK)
		require.False(t, asked(t, control.SetRequest{Op: control.Open, Set: id, Name: "a"}).OK, "its last user has gone")
	}
	make1(t, 50, "a", "chunk")
	require.EqualValues(t, 7, sealed(t, 50, "manifest").Sets[0].Version, "6 is not given twice")
	named(50)
}
