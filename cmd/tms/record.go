package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/group"
)

const shortestRecording = time.Millisecond

func recordCommand() *cobra.Command {
	var file string
	lasting := duration{least: shortestRecording}
	command := &cobra.Command{
		Use:   "record PID",
		Short: "Record what a running process does with device memory",
		Long: `Records what a running process allocates, frees, pauses and resumes, until
Ctrl-C or for the time of --for. tms report and tms replay read the file.`,
		Example: `  tms record 12345
  tms record 12345 -o step.trace --for 10s
  tms report step.trace`,
		ValidArgsFunction: completeProcesses,
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) != 1 {
				return errors.New("name one process by its number (tms ps lists them)")
			}
			pids, err := processes(arguments)
			if err != nil {
				return err
			}
			if file == "" {
				file = fmt.Sprintf("tms-%d.trace", pids[0])
			}
			path, err := filepath.Abs(file)
			if err != nil {
				return err
			}
			return record(command, pids[0], path, lasting.Duration)
		},
	}
	command.Flags().StringVarP(&file, "output", "o", "", "`FILE` to write, for the process (default tms-PID.trace)")
	addTime(command, &lasting, "for", 0, "`TIME` to record, such as 10s (default: until Ctrl-C)")
	return command
}

func record(command *cobra.Command, pid int, path string, lasting time.Duration) error {
	failed := func(err error) error {
		fmt.Fprintf(command.ErrOrStderr(), "tms: %d: %v\n", pid, err)
		return verdict([]group.Outcome{group.Ended(group.Outcome{}, err)})
	}
	ctx, _ := interruptible()
	connection, err := client.Dial(pid)
	if err != nil {
		return failed(err)
	}
	defer connection.Close()
	start := time.Now()
	if err := group.Ask(ctx, connection, control.SteerRequest{Op: control.Record, File: path}); err != nil {
		return failed(err)
	}
	until := ctx
	if lasting > 0 {
		limited, cancel := context.WithDeadline(ctx, start.Add(lasting))
		defer cancel()
		until = limited
	} else {
		fmt.Fprintf(command.ErrOrStderr(), "recording %d to %s; Ctrl-C ends it\n", pid, path)
	}
	if err = lasts(until, connection); err == nil {
		within, cancel := context.WithTimeout(context.Background(), group.AnswerTime)
		defer cancel()
		err = group.Ask(within, connection, control.SteerRequest{Op: control.Record})
	}
	if err != nil {
		return failed(fmt.Errorf("%w; what was recorded until then is in %s", err, path))
	}
	size := ""
	if found, err := os.Stat(path); err == nil { // not a process in another container
		size = readable.Bytes(uint64(found.Size())) + " "
	}
	fmt.Fprintf(command.OutOrStdout(), "%d: recorded, %sin %.1f s: %s\n", pid, size, time.Since(start).Seconds(), path)
	return nil
}

// lasts returns when the context ends, or with the error that the process has ended.
func lasts(ctx context.Context, connection *client.Conn) error {
	next := time.NewTicker(time.Second)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			if _, err := connection.Status(context.Background(), group.AnswerTime); errors.Is(err, client.ErrUnreachable) {
				return err
			}
		}
	}
}
