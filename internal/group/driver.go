package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
	"tms/internal/machine/nvml"
	"tms/vmm/cuda"
)

// driverTime is how long the driver may take for a checkpoint or a restore: it copies what remains of a process.
const driverTime = 2 * time.Minute

// withoutEverything ends a refusal to pause everything.
const withoutEverything = "; without --everything, what is pausable can be paused"

// findDriver returns the driver if it can checkpoint a process, and whether the process is checkpointed already.
func findDriver(pid int) (driver *checkpoint.Driver, done bool, err error) {
	var state checkpoint.State
	if driver, err = checkpoint.Open(); err == nil {
		state, err = driver.State(pid)
	}
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("%w%s", err, withoutEverything)
	case state != checkpoint.Running && state != checkpoint.Checkpointed:
		return nil, false, fmt.Errorf("the driver has it %v already; tms resume %d lets it go on", state, pid)
	}
	if err = untried(); err != nil && state == checkpoint.Running {
		return nil, false, fmt.Errorf("%w%s", err, withoutEverything)
	}
	return driver, state == checkpoint.Checkpointed, nil
}

// checkpoint makes the driver checkpoint a process that is locked.
func (m *Member) checkpoint(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.take(); err != nil {
		return err
	}
	state, err := m.driver.State(m.PID)
	if err == nil && state != checkpoint.Checkpointed {
		err = fmt.Errorf("the driver has it %v after a checkpoint that it did not refuse", state)
	}
	return cmp.Or(err, ctx.Err())
}

// checkpoint makes the driver take the rest of all members, which have paused. Ranks that share memory are locked
// before the first is checkpointed. After an error all are as before, or the members say what is not.
func (g *Group) checkpoint(ctx context.Context) error {
	timeout := max(leastTry, control.Seconds(g.request.TimeoutSeconds()))
	asked := g.request
	asked.Timeout = new(timeout.Seconds())
	err := g.each(func(m *Member) (err error) {
		if !g.alone { // else it was asked for everything at once
			err = Ask(ctx, m.Conn, asked)
		}
		if err == nil && g.moves {
			err = g.mayMove(ctx, m)
		}
		return err
	})
	start := time.Now()
	if err == nil {
		err = g.each(func(m *Member) error {
			if m.driver == nil { // it does not use CUDA
				return nil
			}
			return m.driver.Lock(m.PID, timeout)
		})
	}
	if err == nil {
		err = g.each(func(m *Member) error {
			if m.driver == nil {
				return nil
			}
			return m.checkpoint(ctx)
		})
	}
	if err == nil {
		for _, m := range g.Members {
			m.DriverSeconds = time.Since(start).Seconds()
		}
		return nil
	}
	return g.takeBack(err)
}

// untried refuses the driver's checkpoint of a process on a driver whose restore has not been tried.
func untried() error {
	if checkpoint.Overridden() {
		return nil
	}
	library, err := fleet.NVML()
	version := ""
	if err == nil {
		version, err = library.DriverVersion()
	}
	why := ""
	if err != nil {
		why = fmt.Sprintf("%v, so tms cannot see whether there is room for the restore", err)
	} else {
		why = checkpoint.Untried(version)
	}
	if why == "" {
		return nil
	}
	return cuda.Refuse(cuda.NotSupported, "%s; %s=1 takes the risk", why, checkpoint.Override)
}

// take makes the driver checkpoint a process that is locked, and notes what it took. Before, it notes the most that
// this can be, for the case that this command is killed in between.
func (m *Member) take() error {
	shown, err := fleet.GPUs()
	if err != nil && len(shown) == 0 {
		if !checkpoint.Overridden() {
			return err
		}
		return m.driver.Checkpoint(m.PID, driverTime)
	}
	part, sure := control.Driver{Devices: []control.DriverBytes{}}, fleet.SameNumbers()
	on := map[string]bool{}
	for _, d := range fleet.PartsOf(m.state) {
		on[d.UUID] = true
	}
	for _, gpu := range shown {
		bytes, known := fleet.UsedBy(m.Peer, gpu)
		if sure = sure && (known || !on[gpu.UUID]); known && sure || on[gpu.UUID] {
			part.Devices = append(part.Devices, control.DriverBytes{UUID: gpu.UUID, Bytes: bytes})
		}
	}
	if sure {
		if err = note(m.Conn, part); err != nil {
			return err
		}
		return m.driver.Checkpoint(m.PID, driverTime)
	}
	// What is no longer used while the devices are locked was this process's.
	unlock, err := LockDevices(context.Background(), needOf(&part, nil).devices())
	if err != nil {
		return err
	}
	defer unlock()
	shown, _ = fleet.GPUs()
	before := map[string]nvml.Device{}
	for _, gpu := range shown {
		before[gpu.UUID] = gpu
	}
	for i := range part.Devices {
		part.Devices[i].Bytes = before[part.Devices[i].UUID].UsedBytes
	}
	if err = note(m.Conn, part); err != nil {
		return err
	}
	if err = m.driver.Checkpoint(m.PID, driverTime); err != nil {
		return err
	}
	shown, _ = fleet.GPUs()
	for _, after := range shown {
		for i := range part.Devices {
			if d := &part.Devices[i]; d.UUID == after.UUID {
				d.Bytes = takenBy(before[d.UUID], after)
			}
		}
	}
	return note(m.Conn, part)
}

// takenBy returns what the driver's checkpoint has taken of a process from one GPU, as NVML shows the GPU before and
// after. In a PID namespace that is not NVML's, the process is the only one that is gone; or where NVML shows none, or
// several have gone, what is no longer used was the process's.
func takenBy(before, after nvml.Device) uint64 {
	var gone []nvml.Process
	for _, p := range before.Processes {
		if !slices.ContainsFunc(after.Processes, func(o nvml.Process) bool { return o.PID == p.PID }) {
			gone = append(gone, p)
		}
	}
	if len(gone) == 1 && gone[0].Known {
		return gone[0].UsedBytes
	}
	return before.UsedBytes - min(before.UsedBytes, after.UsedBytes)
}

func note(process *client.Conn, part control.Driver) error {
	ctx, cancel := context.WithTimeout(context.Background(), AnswerTime)
	defer cancel()
	return Ask(ctx, process, control.SteerRequest{Op: control.Note, Driver: &part})
}

// giveBack makes the driver let a process run again, from any state, and reports whether there was anything to do. It
// waits for memory that is short, as restore does. Of two clients that do this at once, each does what is left.
func giveBack(ctx context.Context, driver *checkpoint.Driver, pid int, wait time.Duration,
	pairs ...checkpoint.Pair) (did bool, err error) {
	late := time.Now().Add(max(0, wait) + driverTime)
	for tries := 0; tries < 10; {
		state, err := driver.State(pid)
		if err != nil {
			return did, err
		}
		switch state {
		case checkpoint.Running:
			return did, nil
		case checkpoint.Locked:
			err = driver.Unlock(pid)
		case checkpoint.Checkpointed:
			err = restore(ctx, driver, pid, wait, pairs...)
		case checkpoint.Failed:
			return did, lose(pid, errors.New("a checkpoint failed"), nil)
		default: // on its way
			if time.Now().After(late) {
				return did, fmt.Errorf("%w: the driver has it %v", checkpoint.ErrLate, state)
			}
			time.Sleep(retryTime)
		}
		did = true
		switch {
		case errors.Is(err, cuda.IllegalState): // another process was first
			tries++
		case err != nil:
			return did, err
		}
	}
	return did, errors.New("another client has the driver lock it again and again")
}

const retryTime = 50 * time.Millisecond

// lost is the error of a process that the driver can never give back.
type lost struct {
	pid   int
	words string
}

func (l *lost) Error() string { return l.words }

// isLost reports whether an error, which may be another process's, says that this process is lost.
func isLost(pid int, err error) bool {
	l, ok := errors.AsType[*lost](err)
	return ok && l.pid == pid
}

// lose notes with a process that it is lost, for later commands, and returns that as an error.
func lose(pid int, cause error, part *control.Driver) error {
	l := &lost{pid, fmt.Sprintf("%v. The process is lost: what it had on its GPUs is gone, and its CUDA calls wait for "+
		"good. End it: kill -9 %d", cause, pid)}
	noted := control.Driver{Devices: []control.DriverBytes{}, Lost: l.words}
	if part != nil {
		noted.Devices = part.Devices
	}
	if process, err := client.Dial(pid); err == nil { // else only this command says so
		_ = note(process, noted)
		process.Close()
	}
	return l
}
