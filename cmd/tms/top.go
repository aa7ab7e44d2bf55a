package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/machine/nvml"
	"tms/internal/top"
)

func topCommand() *cobra.Command {
	var job string
	command := &cobra.Command{
		Use:   "top",
		Short: "Watch devices and processes; pause and resume by a key",
		Long: `Shows devices and processes on the whole terminal, twice a second, with every
pause and resume. Keys: up and down select, p pauses, r resumes, h has the rest.`,
		Example: `  tms top
  tms top --job 127.0.0.1:29500`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := cmp.Or(notEmpty(command, "job", "all"), screenful(os.Stdin, os.Stdout)); err != nil {
				return err
			}
			ctx, _ := interruptible()
			interrupted, err := top.Run(ctx, &watched{job: job}, top.Settings{ASCII: !utf8Locale(), Whose: ofWhom(job)},
				os.Stdin, os.Stdout)
			for _, words := range interrupted {
				fmt.Fprintf(command.ErrOrStderr(), "tms: %s\n", words)
			}
			return err
		},
	}
	addJob(command, &job)
	return command
}

// screenful returns why top cannot be shown.
func screenful(files ...*os.File) error {
	const instead = ": tms ps shows the same, and watch tms ps repeats it"
	for _, file := range files {
		if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
			return fmt.Errorf("top is for a terminal, and %s is none%s", strings.TrimPrefix(file.Name(), "/dev/"),
				instead)
		}
	}
	if kind := os.Getenv("TERM"); kind == "" || kind == "dumb" {
		return fmt.Errorf("top needs a terminal that can move its cursor, and TERM=%s is none%s", kind, instead)
	}
	return nil
}

// utf8Locale reports whether the locale promises more than ASCII.
func utf8Locale() bool {
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

// watched is what top shows: processes as tms ps shows them, and devices as NVML does. Look alone changes it.
type watched struct {
	job    string // the launch that is shown, or "" for all processes
	last   seen
	asking chan seen // gets NVML's answer, or is nil while NVML is not being asked
}

// seen is an answer of NVML.
type seen struct {
	devices []nvml.Device
	err     error
}

func (w *watched) Look() top.Look {
	var found []nvml.Device
	var err error
	var asked sync.WaitGroup
	asked.Go(func() { found, err = w.devices(time.Second) })
	processes := fleet.Ask(time.Second)
	asked.Wait()
	fleet.Number(processes, found)
	look := top.Look{At: time.Now(), Devices: fleet.Devices(processes, found)}
	if err != nil {
		look.Note = err.Error()
		if len(found) == 0 {
			look.Note = "devices are shown as the processes see them: " + look.Note
		}
	}
	look.Processes = fleet.OfJob(w.job, processes)
	return look
}

// devices asks NVML, which may take long when the driver does not answer: then it returns its last answer.
func (w *watched) devices(within time.Duration) ([]nvml.Device, error) {
	if w.asking == nil {
		if errors.Is(w.last.err, nvml.ErrUnavailable) {
			return nil, w.last.err
		}
		asking := make(chan seen, 1)
		w.asking = asking
		go func() {
			found, err := fleet.GPUs()
			asking <- seen{found, err}
		}()
	}
	select {
	case w.last = <-w.asking:
		w.asking = nil
		return w.last.devices, w.last.err
	case <-time.After(within):
		return w.last.devices, errors.New("NVML does not answer; devices are shown as they were")
	}
}

func (w *watched) Pause(ctx context.Context, pid int, tag string) (string, error) {
	g := group.Alone(pid)
	o := g.Outcomes(g.Pause(ctx, (&steering{tag: tag}).request(control.Pause), ""))[0]
	return sayPaused(o, ""), o.Err()
}

func (w *watched) Resume(ctx context.Context, pid int, tag string) (string, error) {
	o := group.Resume{Request: (&steering{tag: tag}).request(control.Resume)}.Do(ctx, pid)
	return sayResumed(o), o.Err()
}
