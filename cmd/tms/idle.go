package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/readable"
	"tms/vmm/cuda"
)

const (
	shortestIdle = 50 * time.Millisecond
	rarestLook   = 5 * time.Second        // at whether a process is idle; more often where --after is short
	idlePatience = 100 * time.Millisecond // with devices that have work left, while calls wait
	awaitSlice   = 500 * time.Millisecond // a part of a wait, between checks whether the command is interrupted
	undoPatience = 30 * time.Second       // when the command is interrupted
	headStart    = 50 * time.Millisecond  // of watches that wait for the lock, before the one whose slice is over
)

// idling is what all watches share.
type idling struct {
	steering
	after duration
	file  string
	slice duration // 0: none

	telling sync.Mutex
}

func idleCommand() *cobra.Command {
	s := idling{after: duration{least: shortestIdle}, slice: duration{least: shortestIdle}}
	command := &cobra.Command{
		Use:   "idle PID...",
		Short: "Pause processes while they are idle",
		Long: `Pauses a process when it has given its devices no work for a while (--after);
its next CUDA call resumes it. With --lock, processes take turns on a device.`,
		Example: `  tms idle 12345 --after 5m
  tms idle 12345 23456 --after 10s --lock /tmp/gpu0.lock
  tms idle 12345 23456 --after 10s --lock /tmp/gpu0.lock --slice 1m`,
		ValidArgsFunction: completeProcesses,
		RunE: func(command *cobra.Command, arguments []string) error {
			pids, err := processes(arguments)
			if err != nil || len(pids) == 0 {
				return cmp.Or(err, errors.New("name the processes by number (tms ps lists them)"))
			}
			if command.Flags().Changed("slice") && s.file == "" {
				return errors.New("--slice needs --lock, whose file the processes share")
			}
			return s.run(command, pids)
		},
	}
	addTime(command, &s.after, "after", 5*time.Minute, "`TIME` without work before a pause")
	command.Flags().StringVar(&s.file, "lock", "", "run only one of the processes that share this `FILE`")
	addTime(command, &s.slice, "slice", 0, "with --lock: `TIME` of a turn when another waits")
	s.addTag(command)
	return command
}

func (s *idling) run(command *cobra.Command, pids []int) error {
	turns := make([]*turn, len(pids))
	for i := range pids {
		if s.file != "" {
			// Each has a lock of its own: it is that of the open file.
			file, err := os.OpenFile(s.file, os.O_RDWR|os.O_CREATE, 0o666)
			if err != nil {
				return fmt.Errorf("--lock %s cannot be opened: %w", s.file, bare(err))
			}
			turns[i] = &turn{file: file}
		}
	}
	ctx, again := interruptible()
	context.AfterFunc(ctx, again) // a second signal ends the command
	outcomes := make([]outcome, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			w := watch{idling: s, pid: pid, turn: turns[i], say: func(format string, arguments ...any) {
				s.telling.Lock()
				defer s.telling.Unlock()
				fmt.Fprintf(command.OutOrStdout(), "%d: %s\n", pid, fmt.Sprintf(format, arguments...))
			}}
			err := w.begin(ctx)
			s.telling.Lock()
			defer s.telling.Unlock()
			outcomes[i] = ended(outcome{PID: pid}, err)
			outcomes[i].complain(command)
		})
	}
	all.Wait()
	return verdict(outcomes)
}

// watch is the watch over one process.
type watch struct {
	*idling
	pid     int
	process *client.Conn // when it ends, the process resumes what was paused over it
	turn    *turn        // nil: no process has to wait for a turn
	say     func(format string, arguments ...any)
}

func (w *watch) begin(ctx context.Context) error {
	process, state, err := reach(ctx, w.pid)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer process.Close()
	defer w.turn.leave()
	w.process = process
	if !state.Gated || state.IdleSeconds == nil {
		return errors.New("its threads cannot be stopped: tms run did not start it")
	}
	err = w.attend(ctx)
	if errors.Is(err, client.ErrUnreachable) {
		w.say("has ended")
		return nil
	}
	return err
}

// attend pauses the process whenever that is due, until the command is interrupted.
func (w *watch) attend(ctx context.Context) error {
	tryAt := time.Time{} // nothing is paused before
	for {
		state, err := w.process.Status(ctx, longest) // a stopped process answers when it goes on
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		idle := control.Seconds(*state.IdleSeconds)
		look := w.after.Duration
		if w.slice.Duration > 0 {
			look = min(look, w.slice.Duration)
		}
		look = min(max(look/10, shortestIdle), rarestLook)
		paused := false
		switch {
		case state.Doing != "":
		case state.HeldUp || state.Stats.Everything: // by somebody else
			w.turn.leave()
			look = min(look, time.Second)
		case time.Now().Before(tryAt):
		case !w.turn.tryTake():
			paused, err = w.pause(ctx, 0, control.DefaultTimeout*time.Second)
		case idle >= w.after.Duration:
			paused, err = w.pause(ctx, w.after.Duration, idlePatience)
			if !paused && err == nil {
				tryAt = time.Now().Add(w.after.Duration)
			}
		case w.isOver():
			if paused, err = w.pause(ctx, 0, control.DefaultTimeout*time.Second); paused {
				w.turn.leave()
				time.Sleep(headStart)
			} else {
				w.turn.since = time.Now()
			}
		default:
			look = min(look, max(w.after.Duration-idle, shortestIdle))
		}
		if paused {
			err = w.rest(ctx)
		} else if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(look):
		}
	}
}

// isOver reports whether the slice of the process is over, and another waits for the lock.
func (w *watch) isOver() bool {
	if w.slice.Duration == 0 || time.Since(w.turn.since) < w.slice.Duration {
		return false
	}
	waits := awaited()
	if waits {
		w.say("has run for %v, and another waits", time.Since(w.turn.since).Round(time.Millisecond))
	}
	return waits
}

// pause returns false if the process goes on, because it has work or nothing to give.
func (w *watch) pause(ctx context.Context, idle, timeout time.Duration) (bool, error) {
	request := w.request(control.Pause)
	request.Idle, request.Timeout = new(idle.Seconds()), new(timeout.Seconds())
	reply, err := w.process.Do(ctx, request) // interrupted, it is undone
	if err != nil {
		return false, err
	}
	switch {
	case reply.OK:
		if reply.Bytes > 0 {
			w.say("paused, %s freed in %.2f s%s", readable.Bytes(reply.Bytes), reply.Seconds,
				without(", ", reply.WithoutContents))
		}
		return reply.Bytes > 0, nil
	case reply.Code == int(cuda.NotReady) || reply.Code == int(cuda.Timeout):
		return false, nil
	case reply.Code == int(cuda.NotSupported):
		return false, failure(reply, nil)
	}
	w.say("not paused: %v; it is tried again", failure(reply, nil))
	return false, nil
}

// rest ends when the process has been resumed.
func (w *watch) rest(ctx context.Context) error {
	w.turn.leave()
	for {
		reply, err := w.process.Do(context.Background(), control.Request{Op: control.Await, Wait: awaitSlice.Seconds()})
		if err != nil {
			return err
		}
		if reply.OK {
			break
		}
		if reply.Code != int(cuda.NotReady) {
			return failure(reply, nil)
		}
		if ctx.Err() != nil {
			return w.undo()
		}
	}
	came := time.Now()
	if err := w.turn.take(ctx, w.process); ctx.Err() != nil {
		return w.undo()
	} else if err != nil {
		return err
	}
	request := w.request(control.Resume)
	request.Wait = awaitSlice.Seconds()
	for short := false; ; short = true {
		reply, err := w.process.Do(context.Background(), request)
		if err != nil {
			return err
		}
		if reply.OK {
			if w.turn != nil {
				w.turn.since = time.Now()
			}
			w.say("called, and resumed after %.2f s: %s in %.2f s", time.Since(came).Seconds(),
				readable.Bytes(reply.Bytes), reply.Seconds)
			return nil
		}
		if reply.Code != int(cuda.OutOfMemory) {
			return failure(reply, nil)
		}
		if ctx.Err() != nil {
			return w.undo()
		}
		if !short {
			w.say("called, and waits for memory: %s", reply.Error)
		}
	}
}

// undo resumes what is paused, without a turn, because nothing would give the process one after this command.
func (w *watch) undo() error {
	limited, cancel := context.WithTimeout(context.Background(), undoPatience)
	defer cancel()
	reply, err := w.process.Do(limited, control.Request{Op: control.Undo})
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("it does not answer (stopped?)")
	}
	if err = failure(reply, err); err != nil {
		return fmt.Errorf("still paused, because it cannot be resumed (%w); it tries again by itself", err)
	}
	w.say("resumed, %s in %.2f s", readable.Bytes(reply.Bytes), reply.Seconds)
	return nil
}

// turn is a process's lock on the file, which lets only one process run at a time; nil: all may run.
type turn struct {
	file  *os.File
	has   bool
	since time.Time // when the process began to run with it
}

func (t *turn) tryTake() bool {
	if t != nil && !t.has {
		t.has, t.since = unix.Flock(int(t.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil, time.Now()
	}
	return t == nil || t.has
}

// take waits for the lock, until the command is interrupted or the process is gone.
func (t *turn) take(ctx context.Context, process *client.Conn) error {
	if t == nil {
		return nil
	}
	taken := make(chan error, 1)
	go func() {
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(t.file.Fd()), unix.LOCK_EX)
		}
		taken <- err
	}()
	given := func(err error) error { // a lock that comes later is released
		go func() {
			<-taken
			_ = t.file.Close()
		}()
		return err
	}
	for {
		select {
		case err := <-taken:
			if t.has = err == nil; !t.has {
				return fmt.Errorf("flock %s: %w", t.file.Name(), err)
			}
			return nil
		case <-ctx.Done():
			return given(ctx.Err())
		case <-time.After(time.Second):
			if _, err := process.Status(context.Background(), longest); err != nil {
				return given(err)
			}
		}
	}
}

func (t *turn) leave() {
	if t != nil && t.has {
		t.has = false
		_ = unix.Flock(int(t.file.Fd()), unix.LOCK_UN)
	}
}

// awaited reports whether anybody waits for an flock of this process: it has only that of --lock, for one of its
// watches at a time. The kernel lists waiters after the lock that they wait for, with the same number: "1: FLOCK
// ADVISORY WRITE 4711 …", then "1: -> FLOCK …". (fs/locks.c)
func awaited() bool {
	list, _ := os.ReadFile("/proc/locks")
	own, pid := "", strconv.Itoa(os.Getpid())
	for line := range strings.Lines(string(list)) {
		words := strings.Fields(line)
		switch {
		case len(words) > 4 && words[1] == "FLOCK" && words[4] == pid:
			own = words[0]
		case len(words) > 1 && words[1] == "->" && words[0] == own:
			return true
		}
	}
	return false
}
