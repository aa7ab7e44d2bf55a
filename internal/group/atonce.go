package group

import (
	"context"
	"errors"
	"sync"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/vmm/stats"
)

// In a swap both processes can copy at once: the one saves a part of its memory and gives it back, and the other takes
// it. docs/design/swap.md says why nothing is lost whichever step fails.

// inPlaceOf returns how many bytes this process must leave free on each device, by UUID, while it takes the place of
// another whose memory is not all given back yet. It is nil where one must follow the other: the program that leaves
// cannot be stopped, the driver has one of them, what it leaves does not suffice, or one has an earlier version.
func (m *Member) inPlaceOf(out *Member, pause control.SteerRequest) (leave map[string]uint64) {
	driverHas := out.state.Stats.Everything || m.state.Stats.Everything
	known := min(out.Version, m.Version) >= control.AheadSince
	if !known || !out.state.Gated || driverHas || pause.Discard || pause.To != "" {
		return nil
	}
	is := func(tag stats.Tag) bool { return pause.Tag == nil || *pause.Tag == tag.Tag }
	gives := map[string]uint64{}
	for d, tag := range out.state.Tags() {
		if is(tag) {
			gives[d.UUID] += tag.PhysicalBytes
		}
	}
	needs, devices := map[string]uint64{}, map[string]stats.Device{}
	for d, tag := range m.state.Tags() {
		if is(tag) && tag.PausedBytes > 0 {
			needs[d.UUID] += tag.PausedBytes
			devices[d.UUID] = d
		}
	}
	for uuid, need := range needs {
		if d := devices[uuid]; uuid == "" || gives[uuid] == 0 || d.FreeBytes+gives[uuid] < need {
			return nil
		}
	}
	return leaves(devices, gives, needs)
}

// leaves returns what stays free, by UUID: no process there finds less than before the swap, or than after it.
func leaves(devices map[string]stats.Device, gives, needs map[string]uint64) map[string]uint64 {
	leave := map[string]uint64{}
	for uuid, d := range devices {
		leave[uuid] = min(d.FreeBytes, d.FreeBytes+gives[uuid]-needs[uuid])
	}
	if len(leave) == 0 {
		return nil
	}
	return leave
}

// atOnce pauses a lone process while another takes its place, and reports whether that one is back. Its threads are
// stopped before: a pause that waits for the program keeps no memory from it. After an error both are as before: memory
// that has been given away comes back before the locks end.
func (g *Group) atOnce(ctx context.Context, in *Member, leave map[string]uint64) (came bool, err error) {
	out := g.Members[0]
	pause := g.request
	pause.Parts = true
	stop := pause
	stop.Hold, stop.Lease = true, g.lease()
	pause.Timeout = new(max(leastTry.Seconds(), g.request.TimeoutSeconds())) // there is nothing left to wait for
	if out.err = out.do(ctx, out.Conn, stop); out.err != nil {
		return false, out.err
	}
	// Of all devices of both, or swaps of the same two could each wait for the other's resume.
	unlock, err := out.lockHeld(ctx, (&Group{Members: []*Member{out, in}}).takeOn())
	if out.err = err; err != nil {
		return false, g.undo(err)
	}
	g.unlock = unlock
	defer func() { unlock(); g.unlock = nil }()
	end := Ahead(in.Conn, control.SteerRequest{Op: control.Resume, Tag: pause.Tag, Turn: true, Ahead: leave})
	out.err = out.doWhileRunning(ctx, out.Conn, pause)
	came = in.Record(end(out.err == nil)) == nil
	if out.err != nil {
		return false, g.undo(out.err)
	}
	return came, nil
}

// lockHeld takes the locks of devices while the process's threads stand still, which go on if they hear nothing from
// the command for the time of the lease.
func (m *Member) lockHeld(ctx context.Context, uuids []string) (unlock func(), err error) {
	waits, stop := context.WithCancel(ctx)
	defer stop()
	taken := make(chan struct{})
	var silent error
	var heard sync.WaitGroup
	heard.Go(func() {
		for silent == nil {
			select {
			case <-taken:
				return
			case <-time.After(leastTry):
				silent = Failure(WhileRunning(ctx, m.Conn, control.SteerRequest{Op: control.Status}, lookEvery, lookEvery))
			}
		}
		stop()
	})
	unlock, err = LockDevices(waits, uuids)
	close(taken)
	heard.Wait()
	switch {
	case silent == nil:
		return unlock, err
	case err == nil:
		unlock()
	}
	if ctx.Err() == nil && errors.Is(silent, context.Canceled) {
		silent = errStopped
	}
	return nil, silent
}

// Ahead has a process take memory as it comes, until end is called: that all has come, or that it does not. end returns
// what the process says: it has all of its memory, or it has taken none. A process that is stopped is given up.
func Ahead(process *client.Conn, request control.SteerRequest) (end func(all bool) (control.Reply, error)) {
	type answer struct {
		reply control.Reply
		err   error
	}
	ends, done := make(chan control.SteerRequest, 1), make(chan answer, 1)
	go func() {
		ctx, stop := whileRunning(context.Background(), process, lookEvery, lookEvery)
		defer stop()
		reply, err := process.DoAhead(ctx, request, ends)
		if errors.Is(err, context.Canceled) {
			err = errStopped
		}
		done <- answer{reply, err}
	}()
	return func(all bool) (control.Reply, error) {
		end := control.SteerRequest{Op: control.Undo}
		if all {
			end.Op = control.Complete
		}
		ends <- end
		said := <-done
		return said.reply, said.err
	}
}
