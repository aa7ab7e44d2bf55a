package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/machine/process"
	"tms/internal/snapshot"
	"tms/internal/snapshot/tree"
)

// snapshotEvery takes snapshots of a program again and again until it ends, and keeps the newest of them. It reports a
// snapshot that fails, and takes the next one in its time: the program goes on. It ends if the first one fails.
func snapshotEvery(ctx context.Context, command *cobra.Command, take tree.Take, every time.Duration, keep int,
	say func(*tree.Taken) error) error {
	started, ended, err := process.Started(take.PID)
	if ended || err != nil {
		fmt.Fprintf(command.ErrOrStderr(), "tms: %d: there is no such process\n", take.PID)
		return errNo
	}
	gone := func() bool { return process.Ended(take.PID, started) } // another process may get the number
	first := true
	for next := time.Now(); ; first = false {
		taken, err := take.Do(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			if err = say(taken); err != nil {
				return err
			}
			err = prune(take, keep)
		}
		if err != nil && first {
			fmt.Fprintf(command.ErrOrStderr(), "tms: %d: %v\n", take.PID, err)
			return errNo
		}
		if err != nil && !gone() {
			fmt.Fprintf(command.ErrOrStderr(), "tms: %d: %v; the next snapshot is due in %v\n", take.PID, err, every)
		}
		for next = next.Add(every); time.Now().After(next); {
			next = next.Add(every)
		}
		for time.Now().Before(next) && !gone() {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(min(time.Until(next), time.Second)):
			}
		}
		if gone() {
			fmt.Fprintf(command.ErrOrStderr(), "tms: %d has ended; tms restore %s starts it from its last snapshot\n", take.PID,
				take.Directory)
			return nil
		}
	}
}

// prune removes older snapshots of a program, unless the directory is in use: then the next time does.
func prune(take tree.Take, keep int) error {
	directory, err := snapshot.Open(take.Directory)
	if err != nil || keep == 0 {
		return err
	}
	if _, err = directory.Prune(snapshot.PruneOptions{Keep: keep, PID: take.PID}); errors.Is(err, snapshot.ErrInUse) {
		return nil
	}
	return err
}
