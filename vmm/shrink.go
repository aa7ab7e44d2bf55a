package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"tms/internal/guard"
	"tms/vmm/backup"
	"tms/vmm/cuda"
)

// Shrink gives back the slack of a device's extents, of which a part was freed while neighbours live on,
// until that comes to want bytes, and returns how many bytes it was. It is for when memory is short: an
// extent cannot be cut, so its live part moves to new ones, at the same addresses, while the device is
// idle. No stream may be being captured.
func (e *Engine) Shrink(ordinal int, want uint64) (freed uint64) {
	defer e.auditQuietly()
	e.transition.Lock()
	defer e.transition.Unlock()
	b := e.beginShrink(ordinal)
	if b == nil {
		return 0
	}
	if err := guard.Call(func() error {
		if err := b.device.synchronize(); err != nil {
			return err
		}
		for _, x := range b.extents {
			if freed >= want {
				return nil
			}
			dead := x.dead()
			if err := e.split(b, x); err != nil {
				e.warn(fmt.Sprintf("%d bytes that were freed beside others could not be given back: %v", dead, err))
				continue
			}
			freed += dead
		}
		return nil
	}); err != nil {
		e.warn(fmt.Sprintf("memory that was freed beside other memory could not be given back: %v", err))
	}
	e.endShrink(b)
	return freed
}

// Slack returns how many bytes Shrink could give back.
func (e *Engine) Slack(ordinal int) (bytes uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.devices[ordinal]
	if d == nil {
		return 0
	}
	for _, t := range d.tags {
		bytes += t.slackBytes(d.granularity)
	}
	return bytes
}

// beginShrink claims the extents of a device that have slack, those with the least to move first. Extents
// with a free under way are left alone.
func (e *Engine) beginShrink(ordinal int) *batch {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.devices[ordinal]
	if d == nil {
		return nil
	}
	b := &batch{device: d}
	seen := map[*extent]bool{}
	for _, t := range d.tags {
		for _, list := range t.slack {
			for _, s := range list {
				if x := s.extent; !seen[x] && !x.busy && x.open && x.claims == 0 {
					seen[x] = true
					b.extents = append(b.extents, x)
				}
			}
		}
	}
	if len(b.extents) == 0 {
		return nil
	}
	slices.SortFunc(b.extents, func(x, y *extent) int { return cmp.Compare(x.size-x.dead(), y.size-y.dead()) })
	for _, x := range b.extents {
		for _, s := range x.segments {
			if s.state != slack {
				b.segments = append(b.segments, s)
			}
		}
	}
	b.begin()
	return b
}

// endShrink lets go of what beginShrink claimed.
func (e *Engine) endShrink(b *batch) {
	b.extents = append(b.extents, b.moved...) // after those they replace: segments get the last
	e.end([]*batch{b}, func(*tag) {})
}

// split replaces an extent by one for each run of live neighbours in it. After an error it is as before,
// or, when others took the memory in between, its segments are paused with their contents.
func (e *Engine) split(b *batch, x *extent) error {
	runs := x.runs()
	err := e.splitOnDevice(x, runs)
	if errors.Is(err, cuda.OutOfMemory) {
		runs = x.runs() // the others may still be being undone
		err = e.splitThroughHost(b, x, runs)
	}
	if err == nil {
		b.moved = append(b.moved, runs...)
	} else if x.created && !x.open {
		// It could not be mapped again; what it holds, newer than any copy, comes back with a resume.
		x.only = true
		for _, r := range runs {
			for _, s := range r.segments {
				if s.state == active {
					s.outcome.state, s.outcome.current, s.outcome.sums = paused, false, nil
				}
			}
		}
	}
	return err
}

// runs returns an extent, of nothing yet, for each run of live neighbours.
func (x *extent) runs() (runs []*extent) {
	var run []*segment
	for _, s := range append(x.segments[:len(x.segments):len(x.segments)], nil) {
		if s != nil && s.state != slack {
			run = append(run, s)
		} else if len(run) > 0 {
			runs = append(runs, newExtent(x.device, run...))
			run = nil
		}
	}
	return runs
}

// splitOnDevice needs as much free memory as is live in the extent. The new memory is filled at a shadow
// address, for the old is at its own.
func (e *Engine) splitOnDevice(x *extent, runs []*extent) (err error) {
	d := x.device
	shadow, err := d.driver.MemAddressReserve(x.size, d.granularity)
	if err != nil {
		return err
	}
	at := func(r *extent) uintptr { return shadow + r.address - x.address }
	where := at
	defer func() {
		failed := err != nil
		d.driver.End(func() error {
			for _, r := range runs {
				if !failed {
					break
				}
				if err := r.detach(where(r)); err != nil {
					return err
				}
				if err := r.release(); err != nil {
					return err
				}
			}
			return d.driver.MemAddressFree(shadow, x.size)
		})
	}()
	for _, r := range runs {
		if err := r.create(); err != nil {
			return err
		}
		if err := r.attach(at(r)); err != nil {
			return err
		}
	}
	if err := d.driver.OnStream(d.context, func(stream cuda.Stream) error {
		for _, r := range runs {
			if err := d.driver.MemcpyDtoDAsync(at(r), r.address, r.size, stream); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for _, r := range runs {
		if err := r.detach(at(r)); err != nil {
			return err
		}
	}
	where = func(r *extent) uintptr { return r.address }
	return replace(x, runs)
}

// replace maps runs where the extent was, and releases it.
func replace(x *extent, runs []*extent) (err error) {
	if err := x.detach(x.address); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		for _, r := range runs {
			_ = r.detach(r.address)
		}
		err = errors.Join(err, x.attach(x.address))
	}()
	for _, r := range runs {
		if err := r.attach(r.address); err != nil {
			return err
		}
	}
	return x.release()
}

// Others may take memory in the moment in which none of ours holds it.
const (
	retakeTries = 20
	retakeEvery = 50 * time.Millisecond
)

// splitThroughHost keeps contents in host memory while the extent's memory goes and new memory comes.
func (e *Engine) splitThroughHost(b *batch, x *extent, runs []*extent) error {
	d := x.device
	var items []backup.Item
	var live []*segment
	for _, r := range runs {
		for _, s := range r.segments {
			items = append(items, backup.Item{Span: s.backupSpan()})
			live = append(live, s)
		}
	}
	saved, err := e.host.Save(d.job(), items)
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		for i, s := range live {
			if !keep || s.state != active { // its free waits
				saved[i].Discard()
				continue
			}
			if s.contents != nil {
				s.contents.Discard()
			}
			s.outcome = outcome{paused, kept{saved[i], true, nil}}
		}
	}()
	if err := x.detach(x.address); err != nil {
		return err
	}
	if err := x.release(); err != nil {
		return errors.Join(err, x.attach(x.address))
	}
	for _, r := range runs {
		for try := 1; ; try++ {
			if err = r.make(); err == nil || try == retakeTries {
				break
			}
			time.Sleep(retakeEvery)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		loader := e.host.Load(d.job())
		for i, s := range live {
			loader.Add(s.backupSpan(), saved[i])
		}
		err = loader.Wait()
	}
	if err != nil {
		keep = true
		for _, r := range runs {
			if r.unmake() != nil {
				r.open = false               // nobody is to be given a part of it
				b.moved = append(b.moved, r) // it is taken up again by the resume
			}
		}
		return fmt.Errorf("%d bytes of tag %q are paused now, with their contents; resume it when there is memory: %w",
			x.size-x.dead(), live[0].tag.name, err)
	}
	return nil
}
