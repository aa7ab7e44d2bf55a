package keeper

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"tms/internal/control"
	"tms/internal/control/server"
	"tms/vmm/cuda"
)

// startTime is how long a keeper may take until it answers; it first asks processes what they have.
const startTime = 20 * time.Second

// Start starts a keeper with a command, unless one runs, and returns when one answers. (setsid: it outlives a terminal)
func Start(command ...string) error {
	if _, err := Ask(control.Request{Op: control.List}); err == nil || cuda.Code(err) == int(cuda.Timeout) {
		return err
	}
	keeper := exec.Command(command[0], command[1:]...)
	keeper.Dir, keeper.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	if err := keeper.Start(); err != nil {
		return fmt.Errorf("the keeper cannot be started: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- keeper.Wait() }()
	for start := time.Now(); ; {
		last := time.Since(start) > startTime
		select {
		case <-ended: // another one runs, perhaps
			last = true
		case <-time.After(5 * time.Millisecond):
		}
		if _, err := Ask(control.Request{Op: control.List}); err == nil || last {
			return err
		}
	}
}

// Ask asks the keeper, if one runs. Errors: that it cannot be asked, or why it refuses.
func Ask(r control.Request) (control.Reply, error) {
	reply, _, err := server.Ask(directories, control.Keeper, r, -1) // no descriptor comes with a list or drop
	if err != nil {
		err = fmt.Errorf("the keeper: %w", err)
	} else if !reply.OK {
		err = errors.New(reply.Error)
	}
	return reply, err
}
