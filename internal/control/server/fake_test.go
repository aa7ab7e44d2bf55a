package server_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/guard"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/control/server"
)

// fake is a process that behaves as a test defines.
type fake struct {
	held                               server.Held
	mu                                 sync.Mutex
	runtime, temporary                 string
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
	f.with(func() { runtime, temporary = f.runtime, f.temporary })
	return runtime, temporary
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

func (f *fake) Wake() error { return f.woken() }

func (f *fake) Returned(uint64, server.Importer) { f.call(&f.returns, &f.returned) }

func (f *fake) Hand(work func() error, done func(error)) {
	go func() { done(guard.Call(work)) }()
}

func (f *fake) Log(err error) { f.with(func() { f.logged = append(f.logged, err) }) }

func (f *fake) Lasts(by control.LastingPause) { f.with(func() { f.told = append(f.told, by.Words()) }) }

func (f *fake) LastsNoMore(why string) { f.with(func() { f.told = append(f.told, why) }) }

func (f *fake) Bound(string, uint64, uint64) {}

func (f *fake) Note(control.Driver) {}

func (f *fake) SetPending(now bool) { f.with(func() { f.pending = append(f.pending, now) }) }

func (f *fake) Awaited() (come bool) {
	awaited := now(f, &f.awaited)
	return awaited == nil || awaited()
}

func (f *fake) Look() {}

func (f *fake) Waits() time.Duration { return now(f, &f.waits) }

func (f *fake) Unalign() { f.with(func() { f.unaligns++ }) }

func (f *fake) EndRecording(int) { f.with(func() { f.abandoned++ }) }

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
