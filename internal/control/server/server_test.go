package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/guard"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/control/rights"
	"tms/internal/control/server"
	"tms/internal/machine/process"
	"tms/vmm/cuda"
)

// fake is a process that behaves as a test defines.
type fake struct {
	held                               server.Held
	mu                                 sync.Mutex
	temporary                          string
	anyNamespace                       bool
	perform                            func(*server.Task, *server.Outcome) error
	state                              func(*control.ProcessState) error
	returned, letGo                    func()
	lend                               func() (int, control.Reply, error)
	lets, returns, unaligns, abandoned int
	tasks                              []*server.Task // performed so far
	pending                            []bool
	logged                             []error
	told                               []string
	woken                              func() error // nil: nothing was paused with Yield
	awaited                            func() bool  // nil: a thread always waits
	waits                              time.Duration
	merged                             bool // as after a restore
}

func serve(t *testing.T, prepare ...func(*server.Server)) *fake {
	t.Helper()
	f := &fake{temporary: t.TempDir()}
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", f.temporary)
	serves := server.New(f)
	for _, change := range prepare {
		change(serves)
	}
	require.NoError(t, serves.Serve())
	f.held = serves.Held()
	t.Cleanup(func() { // otherwise the server makes its socket again while the directory is removed
		f.with(func() { f.temporary = filepath.Join(f.temporary, "gone") })
	})
	return f
}

func (f *fake) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// call calls the test's function, if there is one, without the lock.
func (f *fake) call(count *int, set *func()) {
	var do func()
	f.with(func() { *count++; do = *set })
	if do != nil {
		do()
	}
}

func (f *fake) Reserve() error { return nil }

// OwnTable does nothing: Go's poller, which libtms.so does not use, needs its descriptor on each thread.
func (f *fake) OwnTable() error { return nil }

// SharesTable reports what a test has a restored process report.
func (f *fake) SharesTable() (bool, error) { return now(f, &f.merged), nil }
func (f *fake) Directories() (runtime, temporary string) {
	f.with(func() { temporary = f.temporary })
	return "", temporary
}
func (f *fake) AnyNamespace() (any bool) {
	f.with(func() { any = f.anyNamespace })
	return any
}
func (f *fake) Perform(t *server.Task, o *server.Outcome) error {
	var perform func(*server.Task, *server.Outcome) error
	f.with(func() { f.tasks, perform = append(f.tasks, t), f.perform })
	if perform != nil {
		return perform(t, o)
	}
	o.Held = t.Request.Hold
	if t.Request.Op == control.Undo {
		o.Resumed = t.Due
	}
	return nil
}
func (f *fake) LetGo() { f.call(&f.lets, &f.letGo) }
func (f *fake) State(state *control.ProcessState) error {
	complete := func(*control.ProcessState) error { return nil }
	f.with(func() {
		if f.state != nil {
			complete = f.state
		}
	})
	return complete(state)
}
func (f *fake) Lend(uint64, server.Importer) (int, control.Reply, error) {
	var lend func() (int, control.Reply, error)
	f.with(func() { lend = f.lend })
	if lend != nil {
		return lend()
	}
	descriptor, err := unix.MemfdCreate("lent", 0)
	return descriptor, control.Reply{Bytes: 7}, err
}
func (f *fake) Wake() error                      { return f.woken() }
func (f *fake) Returned(uint64, server.Importer) { f.call(&f.returns, &f.returned) }
func (f *fake) Hand(work func() error, done func(error)) {
	go func() { done(guard.Call(work)) }()
}
func (f *fake) Log(err error)                { f.with(func() { f.logged = append(f.logged, err) }) }
func (f *fake) Kept(by control.KeptPause)    { f.with(func() { f.told = append(f.told, by.Words()) }) }
func (f *fake) KeptNoMore(why string)        { f.with(func() { f.told = append(f.told, why) }) }
func (f *fake) Bound(string, uint64, uint64) {}
func (f *fake) Note(control.Driver)          {}
func (f *fake) SetPending(now bool)          { f.with(func() { f.pending = append(f.pending, now) }) }
func (f *fake) Awaited() (come bool) {
	awaited := now(f, &f.awaited)
	return awaited == nil || awaited()
}
func (f *fake) Look()                {}
func (f *fake) Waits() time.Duration { return now(f, &f.waits) }
func (f *fake) Unalign()             { f.with(func() { f.unaligns++ }) }
func (f *fake) EndRecording(int)     { f.with(func() { f.abandoned++ }) }

// pausing makes pauses take these tags, and undos resume what is due.
func (f *fake) pausing(tags ...string) {
	f.performs(func(t *server.Task, o *server.Outcome) error {
		if t.Request.Op == control.Pause {
			o.Took = tags
		}
		o.Resumed = t.Due
		return nil
	})
}

func (f *fake) performs(perform func(*server.Task, *server.Outcome) error) {
	f.with(func() { f.perform = perform })
}

// now reads a field of the process under its lock.
func now[T any](f *fake, field *T) (value T) {
	f.with(func() { value = *field })
	return value
}

func (f *fake) isPending() bool {
	told := now(f, &f.pending)
	return told[len(told)-1]
}

// undone waits until the server has made the process resume tags, without a request.
func (f *fake) undone(t *testing.T, due ...string) {
	t.Helper()
	require.Eventually(t, func() (found bool) {
		f.with(func() {
			found = slices.ContainsFunc(f.tasks, func(t *server.Task) bool {
				return t.Request.Op == control.Undo && t.Withdrawn() && slices.Equal(t.Due, due)
			})
		})
		return found
	}, time.Minute, 5*time.Millisecond)
}

func dial(t *testing.T) *client.Conn {
	t.Helper()
	c, err := client.Dial(os.Getpid())
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func do(t *testing.T, c *client.Conn, r control.Request) control.Reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reply, err := c.Do(ctx, r)
	require.NoError(t, err)
	return reply
}

var (
	pause  = control.SteerRequest{Op: control.Pause}
	all    = control.SteerRequest{Op: control.Pause, Everything: true}
	hold   = control.SteerRequest{Op: control.Pause, Hold: true}
	status = control.SteerRequest{Op: control.Status}
	undo   = control.SteerRequest{Op: control.Undo}
)

// A client that leaves gives up its rights, whatever it is doing; what it keeps stays paused.
func TestClientVanishes(t *testing.T) {
	t.Run("with a hold", func(t *testing.T) {
		f := serve(t)
		c := dial(t)
		require.True(t, do(t, c, hold).OK)
		require.Zero(t, now(f, &f.lets))
		c.Close()
		require.Eventually(t, func() bool { return now(f, &f.lets) == 1 }, time.Minute, 5*time.Millisecond)
	})
	t.Run("after its pause has panicked", func(t *testing.T) {
		f := serve(t)
		f.performs(func(task *server.Task, o *server.Outcome) error {
			if o.Held = task.Request.Hold; !o.Held {
				assert.Zero(t, now(f, &f.lets), "the pause stops the threads before the hold ends")
				panic("a defect")
			}
			return nil
		})
		c := dial(t)
		require.True(t, do(t, c, hold).OK)
		require.Contains(t, do(t, c, pause).Error, "a defect")
		require.Equal(t, 1, now(f, &f.lets))
	})
	t.Run("with an alignment", func(t *testing.T) {
		f := serve(t)
		c := dial(t)
		align := control.SteerRequest{Op: control.Align}
		require.True(t, do(t, c, align).OK)
		require.Contains(t, do(t, dial(t), align).Error, "another client aligns")
		c.Close()
		require.Eventually(t, func() bool { return now(f, &f.unaligns) == 1 }, time.Minute, 5*time.Millisecond)
	})
	t.Run("after a pause", func(t *testing.T) {
		f := serve(t)
		f.pausing("weights", rights.Rest)
		c := dial(t)
		require.True(t, do(t, c, all).OK)
		require.True(t, f.isPending())
		c.Close()
		f.undone(t, rights.Rest, "weights")
		require.False(t, f.isPending())
	})
	t.Run("during a pause", func(t *testing.T) {
		f := serve(t)
		began, goOn := make(chan *server.Task), make(chan struct{})
		f.performs(func(t *server.Task, o *server.Outcome) error {
			if t.Request.Op == control.Pause {
				began <- t
				<-goOn
				o.Took = []string{"weights"}
			}
			o.Resumed = t.Due
			return nil
		})
		c := dial(t)
		go func() { _, _ = c.Do(context.Background(), pause) }()
		task := <-began
		waits := dial(t)
		require.True(t, do(t, waits, status).OK, "a status waits for no pause")
		c.Close()
		require.Eventually(t, task.Withdrawn, time.Minute, 5*time.Millisecond)
		close(goOn)
		f.undone(t, "weights")
	})
	t.Run("after a pause that stays", func(t *testing.T) {
		f := serve(t)
		f.pausing("weights")
		c := dial(t)
		require.True(t, do(t, c, pause).OK)
		require.True(t, do(t, c, control.SteerRequest{Op: control.Keep}).OK)
		c.Close()
		require.True(t, do(t, dial(t), control.SteerRequest{Op: control.Resume}).OK)
		for _, task := range now(f, &f.tasks) {
			require.NotEqual(t, control.Undo, task.Request.Op)
		}
	})
}

// A restore needs the driver's part, also of a process of which not everything can be read.
func TestAStatusAfterAnErrorHasWhatIsKnown(t *testing.T) {
	f := serve(t)
	part := control.Driver{Devices: []control.DriverBytes{{UUID: "GPU-1", Bytes: 7}}}
	f.with(func() {
		f.state = func(state *control.ProcessState) error {
			state.Driver, state.ResumeWait = &part, 3
			return errors.New("a thread waits in the driver")
		}
	})
	state, err := dial(t).Status(context.Background(), time.Minute)
	require.EqualError(t, err, "a thread waits in the driver")
	require.Equal(t, control.ProcessState{Driver: &part, ResumeWait: 3}, state, "a half is not taken for the whole")
}

// A request that panics gets an error, and the next ones of all clients work.
func TestPanics(t *testing.T) {
	panics := func() { panic("a defect") }
	lend := control.LendRequest{Op: control.Lend, Memory: 1, Import: 2}
	back := control.LendRequest{Op: control.Returned, Memory: 1, Import: 2}
	for name, test := range map[string]struct {
		request control.Request
		prepare func(f *fake)
	}{
		"a pause": {pause, func(f *fake) {
			f.perform = func(*server.Task, *server.Outcome) error { panic("a defect") }
		}},
		"letting go after a pause": {pause, func(f *fake) { f.letGo = panics }},
		"a status": {status, func(f *fake) {
			f.state = func(*control.ProcessState) error { panic("a defect") }
		}},
		"memory that comes back": {back, func(f *fake) { f.returned = panics }},
		"a lend": {lend, func(f *fake) {
			f.lend = func() (int, control.Reply, error) { panic("a defect") }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t)
			c, other := dial(t), dial(t)
			require.True(t, do(t, c, hold).OK) // the pause ends the hold
			f.with(func() { test.prepare(f) })
			reply := do(t, c, test.request)
			require.False(t, reply.OK)
			require.Contains(t, reply.Error, "internal error")
			require.Equal(t, 999, reply.Code)
			f.with(func() { f.perform, f.state, f.letGo, f.returned, f.lend = nil, nil, nil, nil, nil })
			for _, conn := range []*client.Conn{c, other} {
				for _, r := range []control.Request{test.request, status, lend, pause} {
					reply := do(t, conn, r)
					require.True(t, reply.OK, "%s: %s", r.Operation(), reply.Error)
				}
			}
		})
	}
}

// What a pause of everything has paused before it panics is resumed for its client.
func TestPanicAfterAPauseOfEverything(t *testing.T) {
	f := serve(t)
	f.performs(func(t *server.Task, o *server.Outcome) error {
		if t.Request.Op == control.Pause {
			o.Took = []string{rights.Rest}
			panic("a defect")
		}
		o.Resumed = t.Due
		return nil
	})
	c, other := dial(t), "other"
	require.Contains(t, do(t, c, all).Error, "internal error")
	require.True(t, do(t, dial(t), control.SteerRequest{Op: control.Resume, Tag: &other}).OK)
	c.Close()
	f.undone(t, rights.Rest)
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

// A peer that runs may take longer to answer than a stopped one may.
func TestAPeerThatIsSlow(t *testing.T) {
	f := serve(t)
	keeper, err := server.Listen(f.Directories, control.Keeper, time.Minute)
	require.NoError(t, err)
	defer unix.Close(keeper.Descriptor)
	go func() {
		client := accepted(keeper)
		defer unix.Close(client)
		_, _, _ = server.Receive(client)
		time.Sleep(20 * time.Millisecond)
		_ = server.Send(client, control.Reply{OK: true, Bytes: 7}, -1, 0)
	}()
	reply, _, err := server.AskWithin(time.Millisecond, f.Directories, control.Keeper,
		control.SetRequest{Op: control.Take}, -1)
	require.NoError(t, err)
	require.EqualValues(t, 7, reply.Bytes)
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

// An undo of everything itself decides whether everything is pending; another client's end changes nothing until it is
// done.
func TestUndoBesideAnothersEnd(t *testing.T) {
	f := serve(t)
	f.pausing("weights", rights.Rest)
	c, other := dial(t), dial(t)
	require.True(t, do(t, c, all).OK)
	began, goOn := make(chan struct{}), make(chan struct{})
	f.performs(func(t *server.Task, o *server.Outcome) error {
		began <- struct{}{}
		<-goOn
		o.Resumed = t.Due
		return nil
	})
	answered := make(chan control.Reply)
	go func() {
		reply, _ := c.Do(context.Background(), undo)
		answered <- reply
	}()
	<-began
	f.with(func() { f.pending = nil })
	require.True(t, do(t, other, control.SteerRequest{Op: control.Keep}).OK)
	other.Close()
	require.True(t, do(t, dial(t), status).OK)
	require.Empty(t, now(f, &f.pending))
	close(goOn)
	require.True(t, (<-answered).OK)
	require.Equal(t, []bool{false}, slices.Compact(now(f, &f.pending)))
}

// An answer comes when another thread has it, not when the server next looks.
func TestAnswersAtOnce(t *testing.T) {
	serve(t, func(s *server.Server) { s.Glance(time.Hour) }).pausing("default")
	c := dial(t)
	for range 100 {
		_, err := c.Status(t.Context(), time.Minute)
		require.NoError(t, err)
		reply, err := c.Do(t.Context(), control.SteerRequest{Op: control.Pause})
		require.NoError(t, err)
		require.True(t, reply.OK)
	}
}

// A request of the process to itself is then answered at once, too.
func TestAnswersItselfAtOnce(t *testing.T) {
	f := serve(t, func(s *server.Server) { s.Glance(time.Hour) })
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	f.performs(func(*server.Task, *server.Outcome) error {
		for range 100 {
			require.NoError(t, f.held.Put(5, 0, int(file.Fd())))
			came, err := f.held.Copy(5)
			require.NoError(t, err)
			f.held.Close(came)
			require.NoError(t, f.held.Drop(5))
		}
		return nil
	})
	require.True(t, do(t, dial(t), pause).OK)
}

// A client whose requests are refused can go on.
func TestRequestsThatAreRefused(t *testing.T) {
	serve(t)
	c := dial(t)
	for _, r := range []control.Request{control.SteerRequest{Op: "fly"}, control.LendRequest{Op: control.Hand},
		control.SteerRequest{Op: control.Record}} {
		reply := do(t, c, r)
		require.False(t, reply.OK)
		require.Equal(t, 1, reply.Code)
		require.NotEmpty(t, reply.Error)
	}
	require.True(t, do(t, c, undo).OK)
}

// A request of a later version is carried out without the fields that this process does not know, which the reply names.
func TestIgnoredFields(t *testing.T) {
	serve(t).pausing("weights")
	address := filepath.Join(control.Directories("", os.Getenv("TMPDIR"), os.Geteuid())[0], control.Name(os.Getpid()))
	connection, err := net.Dial("unix", address)
	require.NoError(t, err)
	defer connection.Close()
	replies := json.NewDecoder(connection)
	for line, ignored := range map[string][]string{
		`{"version":1,"id":1,"op":"status","colour":"red"}`:      {"colour"},
		`{"version":1,"id":2,"op":"pause","why":"x","by":[1,2]}`: {"by", "why"},
		`{"version":1,"id":2,"op":"status"}`:                     nil,
	} {
		_, err = io.WriteString(connection, line+"\n")
		require.NoError(t, err)
		var reply control.Reply
		require.NoError(t, replies.Decode(&reply))
		require.True(t, reply.OK, "%s: %s", line, reply.Error)
		require.Equal(t, ignored, reply.Ignored, line)
	}
}

// Memory that was paused with Yield stays so whichever client leaves, until a thread waits for it. Then the process
// itself takes it back, again and again until that succeeds, but not what others want paused.
func TestYield(t *testing.T) {
	f := serve(t)
	f.pausing("cache", "weights")
	woken, free := make(chan bool, 100), make(chan bool)
	var waits bool
	f.with(func() {
		f.awaited = func() bool { return now(f, &waits) }
		f.woken = func() error {
			woken <- true
			<-free
			return errors.New("no memory")
		}
	})
	yield, undo := pause, control.SteerRequest{Op: control.Undo, Yield: true}
	yield.Yield = true
	c := dial(t)
	require.True(t, do(t, c, yield).OK)
	shared := func() *control.Share {
		state, err := dial(t).Status(context.Background(), time.Minute)
		require.NoError(t, err)
		return state.Share
	}
	require.Equal(t, []string{"cache", "weights"}, shared().Yielded)
	require.Negative(t, shared().Waited)
	c.Close()
	other := dial(t)
	one := pause
	one.Tag = new("weights")
	f.pausing("weights")
	reply := do(t, other, one)
	require.True(t, reply.OK)
	require.Contains(t, reply.Note, "now stays so until a resume")
	require.Equal(t, []string{"cache"}, shared().Yielded, "another wants the weights paused, too")
	require.Empty(t, do(t, other, one).Note)
	require.Empty(t, woken)

	f.with(func() { waits = true })
	<-woken
	require.GreaterOrEqual(t, shared().Waited, 0.0)
	free <- true
	<-woken // it tries again
	f.performs(func(t *server.Task, o *server.Outcome) error {
		o.Resumed = t.Due
		return nil
	})
	require.True(t, do(t, dial(t), undo).OK)
	close(free)
	performed := now(f, &f.tasks)
	require.Equal(t, []string{"cache"}, performed[len(performed)-1].Due)
	require.Empty(t, shared().Yielded)
	require.Negative(t, shared().Waited)
	other.Close()
	f.undone(t, "weights")
}

// A process does not take back what is being resumed. What comes back and is yielded again is waited for, even while
// the process still makes room for the first time.
func TestYieldAgain(t *testing.T) {
	f := serve(t)
	woken, begun, goOn := make(chan bool, 100), make(chan bool), make(chan bool)
	waits := true
	f.with(func() {
		f.awaited = func() bool { return now(f, &waits) }
		f.woken = func() error {
			woken <- true
			<-goOn
			return nil
		}
	})
	c := dial(t)
	yield, undo := pause, control.SteerRequest{Op: control.Undo, Yield: true}
	yield.Yield = true
	waited := func() bool {
		state, err := dial(t).Status(context.Background(), time.Minute)
		require.NoError(t, err)
		return state.Share.Waited >= 0
	}
	f.pausing("weights")
	require.True(t, do(t, c, yield).OK)
	<-woken
	require.True(t, do(t, c, undo).OK)
	require.Eventually(t, func() bool { return !waited() }, time.Minute, 5*time.Millisecond)
	require.True(t, do(t, c, yield).OK)
	require.Eventually(t, waited, time.Minute, 5*time.Millisecond)
	require.Empty(t, woken, "it is still at it")

	f.with(func() { waits = false })
	goOn <- true
	require.True(t, do(t, c, undo).OK)
	require.True(t, do(t, c, yield).OK)
	f.performs(func(t *server.Task, o *server.Outcome) error {
		begun <- true
		<-goOn
		o.Resumed = t.Due
		return nil
	})
	done := make(chan bool)
	go func() { done <- do(t, c, undo).OK }()
	<-begun
	f.with(func() { waits = true }) // the gate opens
	require.True(t, do(t, dial(t), control.SteerRequest{Op: control.Status}).OK)
	goOn <- true
	require.True(t, <-done)
	require.False(t, waited())
	require.Empty(t, woken)
}

// A process waits no longer once another client keeps what it has yielded, or it takes that without others' help.
func TestYieldThatEnds(t *testing.T) {
	for name, ends := range map[string]func(*fake, *client.Conn){
		"another keeps it": func(_ *fake, c *client.Conn) {
			require.True(t, do(t, c, pause).OK)
			require.True(t, do(t, c, control.SteerRequest{Op: control.Keep}).OK)
		},
		"no process makes room": func(f *fake, _ *client.Conn) {
			f.with(func() { f.woken = func() error { return cuda.Refuse(cuda.OperatingSystem, "no command") } })
			f.undone(t, "weights")
		},
		"the command cannot be started for a while": func(f *fake, _ *client.Conn) {
			f.with(func() { f.woken = func() error { return cuda.Refuse(cuda.OperatingSystem, "no descriptor") } })
			refused, tries := make(chan bool), 0
			f.performs(func(t *server.Task, _ *server.Outcome) error {
				if tries++; tries == 2 {
					close(refused)
				}
				return cuda.OutOfMemory
			})
			<-refused // nothing is free, and it tries again
			f.pausing("weights")
		},
		"it shares with no process": func(f *fake, _ *client.Conn) {
			f.with(func() { f.woken = func() error { return server.ErrAlone } })
			f.undone(t, "weights")
			f.with(func() { require.Len(t, f.logged, 1, "of the error before") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t)
			f.pausing("weights")
			f.with(func() {
				f.awaited = func() bool { return true }
				f.woken = func() error { return errors.New("no memory") }
			})
			c := dial(t)
			yield := pause
			yield.Yield = true
			require.True(t, do(t, c, yield).OK)
			waits := func() bool {
				state, err := c.Status(context.Background(), time.Minute)
				require.NoError(t, err)
				return state.Share.Waited >= 0
			}
			require.Eventually(t, waits, time.Minute, 5*time.Millisecond)
			ends(f, c)
			require.Eventually(t, func() bool { return !waits() }, time.Minute, 5*time.Millisecond)
		})
	}
}

// A client that is killed in the middle of a pause with Yield leaves it to the process as well.
func TestYieldAndAClientThatVanishes(t *testing.T) {
	f := serve(t)
	began, goOn := make(chan *server.Task), make(chan bool)
	f.with(func() { f.awaited = func() bool { return false } })
	f.performs(func(t *server.Task, o *server.Outcome) error {
		if t.Request.Op == control.Pause {
			began <- t
			<-goOn
			o.Took = []string{"weights"}
		}
		return nil
	})
	yield := pause
	yield.Yield = true
	c := dial(t)
	go func() { _, _ = c.Do(context.Background(), yield) }()
	task := <-began
	c.Close()
	require.Eventually(t, task.Withdrawn, time.Minute, 5*time.Millisecond)
	close(goOn)
	other := dial(t)
	require.Eventually(t, func() bool {
		state, err := other.Status(context.Background(), time.Minute)
		return err == nil && slices.Equal(state.Share.Yielded, []string{"weights"})
	}, time.Minute, 5*time.Millisecond)
	require.Len(t, now(f, &f.tasks), 1, "no client has undone it")
}

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

// aheadVariable names the socket that TestAsksAhead asks, in a process that is stopped.
const aheadVariable = "TESTED_AHEAD"

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
	_, _ = io.Copy(os.Stdout, socket)
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
	answers, err := asks.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, asks.Start())
	defer func() { _ = asks.Process.Kill(); _ = asks.Wait() }()
	<-begun
	require.Empty(t, ended)
	require.NoError(t, asks.Process.Signal(syscall.SIGSTOP))
	<-ended

	// It hears of that once it goes on, and keeps its connection.
	require.NoError(t, asks.Process.Signal(syscall.SIGCONT))
	line, err := bufio.NewReader(answers).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "cancelled")
}
