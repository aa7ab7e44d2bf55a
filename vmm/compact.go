package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/mapping"
	"tms/vmm/store"
)

// Compactor lets the engine move live memory: it stops the program's threads at the gate, waits until the devices are
// idle, calls Compact, and lets the threads go on.
type Compactor interface {
	// CanCompact reports whether that can be done in this process.
	CanCompact() bool
	// Compact does it for a device.
	Compact(ordinal int) error
}

// MakeRoom gives the slack of a device back if it can, and reports whether any was given back: then a caller that found
// too little memory tries again.
func (e *Engine) MakeRoom(ordinal int) bool {
	if !e.process.CanCompact() {
		return false
	}
	before := e.compactable(ordinal)
	if before == 0 {
		return false
	}
	_ = e.process.Compact(ordinal) // the caller's own error says more
	return e.compactable(ordinal) < before
}

// compactable returns how many bytes of a device's slack Compact could give back.
func (e *Engine) compactable(ordinal int) (bytes uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.devices[ordinal]
	if d == nil {
		return 0
	}
	var p pace
	for _, t := range d.tags {
		p.yield(e, 1)
		for s := range t.slack.All() {
			if e.canCompact(s.extent) {
				bytes += s.span.Bytes()
			}
			p.yield(e, len(s.extent.segments))
		}
	}
	return bytes
}

// canCompact reports whether an extent has slack that a compaction can give back: all else in it is active, and no
// other process has it mapped. The caller holds e.mu.
func (e *Engine) canCompact(x *extent) bool {
	if x.live == len(x.segments) || x.backing != own || x.Exported ||
		slices.ContainsFunc(x.exports, e.sharing.importers.Has) {
		return false
	}
	return !slices.ContainsFunc(x.segments, func(s *segment) bool {
		return s.state != slack &&
			(s.state != active || s.owner == aFree || s.shared != 0 && e.sharing.importers.Has(s.shared))
	})
}

// Compact gives back the slack of a device: what is live in an extent with slack is copied to new extents without any,
// which are then mapped in its place. Until then nothing is given up, so an error leaves all active. Only where too
// little is free for the copies of an extent, they wait in host memory, and if others take the memory in that
// moment, or the driver refuses twice, its segments are paused with their contents, as by a gated pause; Compact then
// tries for a while to resume them.
//
// The caller has closed the gate, and the devices are idle. Errors: cuda.OutOfMemory, store.ErrHostMemory, *cuda.Error.
// (cuMemCreate, cuMemAddressReserve, cuMemMap, cuMemSetAccess, cuMemcpyDtoDAsync, cuMemUnmap, cuMemRelease)
func (e *Engine) Compact(ordinal int) (freed uint64, err error) {
	defer e.audit(&err)
	o := &operation{Options: Options{Gated: true}}
	left := map[*segment]bool{} // paused
	wanted := func(s *segment) bool {
		return s.device.ordinal == ordinal && s.is(active) && s.extent != nil &&
			(s.extent.owner == aCall || e.canCompact(s.extent))
	}
	err = e.transact("compact", o, wanted, func(batches []*batch) (err error) {
		for _, b := range batches {
			freed, err = e.compact(b)
			for _, s := range b.segments {
				if s.outcome.state == paused {
					left[s] = true
				}
			}
		}
		return err
	}, func(*tag) {})
	retry := backoff.Backoff{Next: time.Millisecond, Most: 50 * time.Millisecond}
	for until := time.Now().Add(patience); len(left) > 0; {
		back := e.transact("resume", o, func(s *segment) bool { return left[s] && s.is(paused) },
			func(batches []*batch) error {
				e.gather(batches, 0, nil)
				return e.resume(batches, o)
			}, func(*tag) {})
		if back == nil || !retry.Sleep(until) {
			return freed, cmp.Or(back, err)
		}
	}
	return freed, err
}

// compact is the work of the transaction.
func (e *Engine) compact(b *batch) (freed uint64, err error) {
	e.contexts.FindUsers(b.device.users, &b.device.peers)
	bytes := func(x *extent) (live uint64) {
		for _, s := range x.segments {
			if s.state != slack {
				live += s.length()
			}
		}
		return live
	}
	extents := filter(b.extents, func(x *extent) bool { return x.live < len(x.segments) })
	slices.SortStableFunc(extents, func(x, y *extent) int { return cmp.Compare(bytes(x), bytes(y)) })
	for _, x := range extents { // what the first give back is room for the copies of the next
		parts := x.withoutSlack()
		err = e.replace(b, x, parts)
		if errors.Is(err, cuda.OutOfMemory) {
			err = e.replaceThroughHost(b, x, parts)
		}
		if x.Step == mapping.None {
			freed += x.Size - bytes(x)
		}
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// withoutSlack plans extents for what is live in an extent, one for neighbours, as a resume does (follows).
func (x *extent) withoutSlack() (parts []*extent) {
	for n, s := range x.segments {
		switch {
		case s.state == slack:
		case n > 0 && x.segments[n-1].state != slack && s.shared == 0 && x.segments[n-1].shared == 0:
			parts[len(parts)-1].add(s)
		default:
			part := newExtent(s)
			part.owner = aTransition
			parts = append(parts, part)
		}
	}
	return parts
}

// replace copies an extent to its parts, and maps these in its place.
func (e *Engine) replace(b *batch, x *extent, parts []*extent) (err error) {
	for _, part := range parts {
		if err = part.Create(); err != nil {
			break
		}
	}
	if err == nil {
		err = e.copyAside(b, parts)
	}
	if err == nil {
		err = x.Detach()
	}
	if err != nil {
		for _, part := range parts {
			part.Drop()
		}
		return err
	}
	for _, part := range parts {
		if err = part.Attach(); err != nil {
			break
		}
	}
	if err == nil {
		x.Drop()
		b.extents = append(b.extents, parts...)
		return nil
	}
	stuck := false
	for _, part := range parts {
		stuck = part.Detach() != nil || stuck
	}
	if !stuck {
		for _, part := range parts {
			part.Drop()
		}
		if x.Attach() == nil {
			return err
		}
		_ = x.Undo(x.segments[0].extent == x)
	} else { // the parts are complete, but not all are mapped
		x.Drop()
		for _, part := range parts {
			part.Step = min(part.Step, mapping.Mapped)
		}
		b.extents = append(b.extents, parts...)
	}
	for _, s := range x.segments {
		if s.state != slack {
			s.pauseHeld()
		}
	}
	return err
}

// copyAside copies what is live to parts that are not mapped yet. (cuMemcpyDtoDAsync)
func (e *Engine) copyAside(b *batch, parts []*extent) error {
	var ends []func() // of mappings, once the copies are done
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	return e.driver.OnStream(b.device.context, func(stream cuda.Stream) error {
		for _, part := range parts {
			address, end, err := part.Aside()
			if err != nil {
				return err
			}
			ends = append(ends, end)
			if err := e.driver.MemcpyDtoDAsync(address, part.Address, part.Size, stream); err != nil {
				return err
			}
		}
		return e.driver.StreamSynchronize(stream)
	})
}

// replaceThroughHost is replace where too little memory is free for the copies: they wait in host memory while the
// extent is given back.
func (e *Engine) replaceThroughHost(b *batch, x *extent, parts []*extent) error {
	segments := filter(x.segments, func(s *segment) bool { return s.state != slack })
	items := make([]store.Item, len(segments))
	for i, s := range segments {
		items[i] = store.Item{Span: s.backupSpan(), Parts: s.all()}
	}
	if err := e.host.Check(b.job.Budget, items); err != nil {
		return err
	}
	copies, err := e.host.Save(b.job, items)
	if err != nil {
		return err
	}
	given := false // the extent was
	defer func() {
		for i, s := range segments {
			if given && s.outcome.state == paused {
				if s.contents != nil {
					s.contents.Discard()
				}
				s.outcome.saved = saved{contents: copies[i], current: true}
			} else {
				copies[i].Discard()
			}
		}
	}()
	if err := x.Detach(); err != nil {
		return err
	}
	if err := x.Release(); err != nil {
		if x.Attach() != nil {
			_ = x.Undo(x.segments[0].extent == x)
			for _, s := range segments {
				s.pauseHeld()
			}
		}
		return err
	}
	given = true
	err = func() error {
		for _, part := range parts {
			if err := part.Make(); err != nil {
				return err
			}
		}
		loader := e.host.Load(b.job)
		for i, s := range segments {
			loader.Add(s.backupSpan(), copies[i])
		}
		return loader.Wait()
	}()
	b.extents = append(b.extents, parts...)
	if err != nil {
		for _, part := range parts {
			_ = part.Unmake()
			part.Step = min(part.Step, mapping.Mapped)
		}
		for _, s := range segments {
			s.outcome.state = paused
		}
	}
	return err
}

// slackNote returns the text behind an out-of-memory error that says how much slack there is.
func (e *Engine) slackNote(d *device, err error) string {
	if !errors.Is(err, cuda.OutOfMemory) {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var held uint64
	var names []string
	var p pace
	for name, t := range d.tags {
		p.yield(e, 1)
		if slack := t.slack.Granules() * d.granularity; slack > 0 {
			held += slack
			names = append(names, strconv.Quote(name))
		}
	}
	if held == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("; %s of device %d are slack, freed beside memory that is in use: the next pause of the tag "+
		"gives it back (%s)", readable.Bytes(held), d.ordinal, strings.Join(names, ", "))
}
