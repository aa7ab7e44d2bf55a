// Package top is the live view of tms top: its screen and its keys. A Source supplies each Look, which has processes and
// devices as package fleet sees them, and pauses and resumes. The model has a row for each process and each tag, with
// figures (figures.go); events (events.go) and a history (history.go) come from the differences between looks. bubbletea
// handles the terminal.
package top

import (
	"context"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"tms/internal/fleet"
)

// Source supplies what is shown, and pauses and resumes. Several calls may be in progress at once, but only one Look.
type Source interface {
	// Look asks all processes and devices, and takes no longer than a second or two whatever they do.
	Look() Look
	// Pause and Resume pause or resume one tag of a process, or all (""), and return the outcome as text. If the
	// context ends they undo what is not complete.
	Pause(ctx context.Context, pid int, tag string) (string, error)
	Resume(ctx context.Context, pid int, tag string) (string, error)
}

// Look is what there was at one moment.
type Look struct {
	At        time.Time
	Processes []fleet.Process
	Devices   []fleet.Device
	Note      string // a remark about the devices' figures
}

// Settings are the terminal's.
type Settings struct {
	ASCII bool   // it shows no other characters
	Whose string // processes are shown, if not all of this user's
}

// every is the time between looks, short enough to see a pause in progress that takes a second.
const every = 500 * time.Millisecond

// Run shows the view until the user quits or the context ends. It interrupts pauses and resumes that are in progress at
// that moment, and returns their results.
func Run(ctx context.Context, source Source, settings Settings, in io.Reader,
	out io.Writer) (interrupted []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var steering sync.WaitGroup
	var mu sync.Mutex
	m := newModel(source, settings)
	m.steer = func(s steer) tea.Cmd {
		result := make(chan steered, 1)
		steering.Go(func() { // whether bubbletea waits for it or not
			done := s.do(ctx, source)
			if ctx.Err() != nil {
				mu.Lock()
				defer mu.Unlock()
				interrupted = append(interrupted, done.text())
			}
			result <- done
		})
		return func() tea.Msg { return <-result }
	}
	program := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	stop := context.AfterFunc(ctx, program.Quit)
	defer stop()
	_, err = program.Run()
	cancel()
	steering.Wait()
	return interrupted, err
}
