package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"tms/internal/control"
	"tms/internal/control/server"
)

// startTime is how long a keeper may take until it answers; it first asks processes what they have.
const startTime = 20 * time.Second

// Start starts a keeper with a command, unless one runs, and returns when one answers. (setsid: it outlives a terminal)
func Start(command string, arguments ...string) error {
	_, err := Ask(control.Request{Op: control.List})
	if err == nil {
		return nil
	}
	keeper := exec.Command(command, arguments...)
	keeper.Dir = "/"
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err = keeper.Start(); err != nil {
		return fmt.Errorf("the keeper cannot be started: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- keeper.Wait() }()
	for start := time.Now(); time.Since(start) < startTime; time.Sleep(5 * time.Millisecond) {
		if _, err = Ask(control.Request{Op: control.List}); err == nil {
			return nil
		}
		select {
		case failed := <-ended: // another one runs, perhaps
			if _, err = Ask(control.Request{Op: control.List}); err != nil {
				err = fmt.Errorf("the keeper ended at once (%v): %w", failed, err)
			}
			return err
		default:
		}
	}
	return fmt.Errorf("the keeper does not answer: %w", err)
}

// Ask asks the keeper, if one runs. Errors: that it cannot be asked, or why it refuses.
func Ask(r control.Request) (control.Reply, error) {
	reply, came, err := ask(r)
	if came != nil {
		_ = came.Close()
	}
	return reply, err
}

func ask(r control.Request) (reply control.Reply, came *os.File, err error) {
	reply, descriptor, err := server.Ask(directories, control.Keeper, r, -1)
	if descriptor >= 0 {
		came = os.NewFile(uintptr(descriptor), "manifest")
	}
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	return reply, came, err
}

// Manifest returns the manifest of a set; nil: it has none any longer.
func Manifest(of control.KeptSet) []byte {
	if of.Sealed == 0 || of.Replaced {
		return nil
	}
	reply, came, err := ask(control.Request{Op: control.Open, Name: of.Name})
	if err != nil || came == nil {
		return nil
	}
	defer func() { _ = came.Close() }()
	got := reply.Sets[0]
	text := make([]byte, got.Manifest)
	if _, err = came.ReadAt(text, 0); err != nil || got.ID != of.ID {
		text = nil
	}
	_, _ = Ask(control.Request{Op: control.Close, Set: got.ID})
	return text
}
