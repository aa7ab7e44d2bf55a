package top

import (
	"io"
	"os"
	"os/signal"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"
)

// suspend gives the terminal back, stops the process group as Ctrl-Z does elsewhere, and draws the screen again when the
// group goes on. tea.Suspend would wait forever for a SIGCONT where no shell can continue the group (ssh -t HOST tms
// top): the kernel does not stop such a group.
func suspend() tea.Msg { return tea.Exec(stopped{}, nil)() }

type stopped struct{}

// unstopped is how long a group that the kernel does not stop looks as if it were.
const unstopped = time.Second

func (stopped) Run() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, unix.SIGCONT)
	defer signal.Stop(goesOn)
	if err := unix.Kill(0, unix.SIGTSTP); err != nil {
		return err
	}
	select {
	case <-goesOn:
	case <-time.After(unstopped):
	}
	return nil
}

func (stopped) SetStdin(io.Reader)  {}
func (stopped) SetStdout(io.Writer) {}
func (stopped) SetStderr(io.Writer) {}
