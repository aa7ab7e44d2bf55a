package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/group"
	"tms/vmm/cuda"
)

const (
	shortestIdle = 50 * time.Millisecond
	rarestLook   = 5 * time.Second        // at whether a process is idle; more often where --after is short
	idlePatience = 100 * time.Millisecond // with devices that have work left, while calls wait
)

// idling is what all watches share.
type idling struct {
	steering
	after   duration
	telling sync.Mutex
}

func idleCommand() *cobra.Command {
	s := idling{after: duration{least: shortestIdle}}
	command := &cobra.Command{
		Use:   "idle PID...",
		Short: "Pause processes while they are idle",
		Long: `Pauses a process when it has given its devices no work for a while (--after);
its next CUDA call resumes it. Programs of tms run --share need no such watch.`,
		Example:           `  tms idle 12345 --after 5m`,
		ValidArgsFunction: completeProcesses,
		RunE: func(command *cobra.Command, arguments []string) error {
			pids, err := processes(arguments)
			if err != nil || len(pids) == 0 {
				return cmp.Or(err, errors.New("name the processes by number (tms ps lists them)"))
			}
			return s.run(command, pids)
		},
	}
	addTime(command, &s.after, "after", 5*time.Minute, "`TIME` without work before a pause")
	s.addTag(command)
	return command
}

func (s *idling) run(command *cobra.Command, pids []int) error {
	ctx, again := interruptible()
	context.AfterFunc(ctx, again) // a second signal ends the command
	outcomes := make([]group.Outcome, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			w := watch{idling: s, pid: pid, say: func(format string, arguments ...any) {
				s.telling.Lock()
				defer s.telling.Unlock()
				fmt.Fprintf(command.OutOrStdout(), "%d: %s\n", pid, fmt.Sprintf(format, arguments...))
			}}
			err := w.begin(ctx)
			s.telling.Lock()
			defer s.telling.Unlock()
			outcomes[i] = group.Ended(group.Outcome{PID: pid}, err)
			complain(command, outcomes[i])
		})
	}
	all.Wait()
	return verdict(outcomes)
}

// watch is the watch over one process.
type watch struct {
	*idling
	pid     int
	process *client.Conn
	say     func(format string, arguments ...any)
}

func (w *watch) begin(ctx context.Context) error {
	process, state, err := group.Reach(ctx, w.pid)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer process.Close()
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

// attend pauses the process whenever that is due, until the command is interrupted. The process resumes itself.
func (w *watch) attend(ctx context.Context) error {
	rarest := min(max(w.after.Duration/10, shortestIdle), rarestLook)
	tryAt := time.Time{} // nothing is paused before
	paused := false
	for {
		state, err := w.process.Status(ctx, longest) // a stopped process answers when it goes on
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		look := rarest
		switch idle := control.Seconds(*state.IdleSeconds); {
		case state.Doing != "":
		case state.HeldUp || state.Stats.Everything:
			look = min(look, time.Second)
		case paused:
			paused, look = false, 0
			w.say("called, and resumed")
		case time.Now().Before(tryAt):
		case idle < w.after.Duration:
			look = min(look, max(w.after.Duration-idle, shortestIdle))
		default:
			if paused, err = w.pause(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			if !paused {
				tryAt = time.Now().Add(w.after.Duration)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(look):
		}
	}
}

// pause returns false if the process goes on, because it has work or nothing to give.
func (w *watch) pause(ctx context.Context) (bool, error) {
	request := w.request(control.Pause)
	request.Yield, request.Idle, request.Timeout = true, new(w.after.Seconds()), new(idlePatience.Seconds())
	reply, err := w.process.Do(ctx, request)
	if err != nil {
		return false, err
	}
	switch {
	case reply.OK:
		var o group.Outcome
		_ = o.Record(reply, nil)
		if o.Changed() {
			w.say("%s", sayPaused(o, ""))
		}
		return o.Changed(), nil
	case reply.Code == int(cuda.NotReady) || reply.Code == int(cuda.Timeout):
		return false, nil
	case reply.Code == int(cuda.NotSupported):
		return false, group.Failure(reply, nil)
	}
	w.say("not paused: %v; it is tried again", group.Failure(reply, nil))
	return false, nil
}
