package sets

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

// StartKeeper starts a keeper with a command, unless one runs, and returns when one answers. (setsid: it outlives a terminal)
func StartKeeper(command ...string) error {
	_, _, err := Ask(control.SetRequest{Op: control.List}, -1)
	if err == nil || cuda.Code(err) == int(cuda.Timeout) || errors.Is(err, control.ErrOpen) { // where one may run
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
		if _, _, err := Ask(control.SetRequest{Op: control.List}, -1); err == nil || last {
			return err
		}
	}
}

// Ask asks the keeper, if one runs. given is a descriptor for a put or seal, or -1; the caller closes what comes with
// an open or lend. Errors: that it cannot be asked, or why it refuses.
func Ask(r control.Request, given int) (reply control.Reply, came int, err error) {
	reply, came, err = server.Ask(directories, control.Keeper, r, given)
	if err != nil {
		err = fmt.Errorf("the keeper: %w", err)
	} else if !reply.OK {
		err = cuda.Refuse(cuda.Result(reply.Code), "%s", reply.Error)
	}
	return reply, came, err
}
