package server_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/control/server"
	"tms/vmm/cuda"
)

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
