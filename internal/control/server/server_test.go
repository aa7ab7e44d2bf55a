package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/control/rights"
	"tms/internal/control/server"
)

var (
	pause  = control.SteerRequest{Op: control.Pause}
	all    = control.SteerRequest{Op: control.Pause, Everything: true}
	hold   = control.SteerRequest{Op: control.Pause, Hold: true}
	status = control.SteerRequest{Op: control.Status}
	undo   = control.SteerRequest{Op: control.Undo}
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

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

// aheadVariable names the socket that TestAsksAhead asks, in a process that is stopped.
const aheadVariable = "TESTED_AHEAD"
