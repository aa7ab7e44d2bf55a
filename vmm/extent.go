package vmm

import (
	"errors"
	"maps"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
)

// extent is memory of segments side by side. A cudaMalloc makes one for its segment; a resume makes them for many
// segments at once, because the driver charges per handle.
type extent struct {
	mapping.Mapping
	device   *device
	segments []*segment // by address; those in slack are free, but cannot be released alone
	live     int        // segments that are not in slack
	shared   bool       // device.shared counts it
	owner    owner
	backing
	named   bool     // other processes may ask for it, so it must be exportable
	plain   bool     // it cannot be exported
	users   []int    // devices that have access
	exports []uint64 // names of freed segments that other processes may still have mapped (sharing.importers)
}

// newExtent returns an extent without memory for a segment.
func newExtent(s *segment) *extent {
	x := newMemory(s.device, s.backing)
	x.Address, x.named = s.address, s.shared != 0
	x.add(s)
	return x
}

// newMemory returns an extent that is at no address yet.
func newMemory(d *device, from backing) *extent {
	x := &extent{device: d, backing: from}
	x.Mapping = mapping.Mapping{Driver: d.driver, Device: d.ordinal, Backing: x}
	return x
}

// add makes room for a segment behind those of an extent without memory.
func (x *extent) add(s *segment) {
	x.segments = append(x.segments, s)
	x.live++
	x.Size += s.length()
}

// prop returns the properties of the engine's own memory on a device that cannot be exported.
func (d *device) prop() cuda.AllocationProp {
	if d.rdma {
		return cuda.PinnedOn(d.ordinal).ForRDMA()
	}
	return cuda.PinnedOn(d.ordinal)
}

// NewHandle makes the memory of an extent. (cuMemCreate)
func (x *extent) NewHandle() (cuda.Handle, error) {
	if f := x.userMapped; f != nil {
		return x.device.driver.MemCreateWith(f.size, f.prop)
	}
	d := x.device
	prop := d.prop()
	if !d.shareable.Load() {
		return d.driver.MemCreateWith(x.Size, prop)
	}
	handle, err := d.driver.MemCreateWith(x.Size, prop.AsFile())
	if err == nil {
		d.shares.Store(true)
	}
	refused := errors.Is(err, cuda.NotSupported) || errors.Is(err, cuda.NotPermitted) ||
		errors.Is(err, cuda.InvalidValue)
	if refused && !x.named {
		// The device reports that it can, but a virtual device or a sandbox may refuse.
		if plain, failed := d.driver.MemCreateWith(x.Size, prop); failed == nil {
			x.plain = true
			d.shareable.Store(d.shares.Load())
			return plain, nil
		}
	}
	return handle, err
}

// Goal returns the step that the extent of an active segment reaches: of user-mapped memory what the program had done.
func (x *extent) Goal() mapping.Step {
	switch f := x.userMapped; {
	case f == nil || f.mapped && len(f.access) > 0:
		return mapping.Accessible
	case f.mapped:
		return mapping.Mapped
	}
	return mapping.Created
}

// GiveBack tells the process that owns imported memory that this process no longer holds it.
func (x *extent) GiveBack() {
	if i := x.imported; i != nil && i.number != 0 {
		i.tell(i.number)
		i.number = 0
	}
}

// gather plans extents for the segments that have none: one for neighbours of a tag, up to limit bytes, that come back
// at the same step of an order.
func (e *Engine) gather(batches []*batch, limit uint64, step map[*segment]int) {
	var p pace
	for _, b := range batches {
		b.extents = nil
		var x *extent // the last
		e.mu.Lock()
		for n, s := range b.segments {
			p.yield(e, 1)
			switch {
			case x != nil && s.extent == x:
				continue
			case s.extent != nil:
				x = s.extent
			case n > 0 && b.segments[n-1].extent == nil && s.follows(b.segments[n-1]) &&
				step[s] == step[b.segments[n-1]] && x.Size+s.length() <= limit:
				x.add(s)
				continue
			default:
				x = newExtent(s)
				x.owner = aTransition
			}
			b.extents = append(b.extents, x)
		}
		shared := b.device.shared
		e.mu.Unlock()
		if !e.process.CanCompact() {
			b.extents = e.bound(b.device, b.extents, shared)
		}
		for _, x := range b.extents {
			b.moved += x.Size
			if x.Step > mapping.None {
				b.held += x.Size
			}
		}
	}
}

// follows reports whether a segment can share an extent with the one before it. Slack can later be joined only within
// one range, and a segment that other processes open must stand alone (share.go).
func (s *segment) follows(last *segment) bool {
	return s.span.SameRange(last.span) && s.address == last.address+uintptr(last.length()) &&
		s.userMapped == nil && last.userMapped == nil && s.shared == 0 && last.shared == 0
}

// Without a gate nothing can move what is live, and nearly all memory in extents that segments share may become slack.
// So at most a sixteenth of a device lies in such extents. More may, as long as the program could lose all of it and
// have the most that it ever had, and a quarter of the device beyond.
const (
	sharedPart = 16
	sparePart  = 4
)

// bound divides extents that have no memory yet, where a device would otherwise have too much memory in shared extents.
// has is the bytes that are in shared extents already.
//
// Each handle that is saved makes the bytes of a segment depend on its neighbours. So the smallest segments share
// first, also where larger ones lie between them.
func (e *Engine) bound(d *device, extents []*extent, has uint64) (bounded []*extent) {
	dividable := func(x *extent) bool { return x.Step == mapping.None && len(x.segments) > 1 }
	wanted, may := has, d.total/sharedPart
	for _, x := range filter(extents, dividable) {
		wanted += x.Size
	}
	if wanted > may {
		may = max(may, e.spare(d))
	}
	if wanted <= may {
		return extents
	}
	left := may - min(may, has)
	var all []*segment          // of the extents that may be divided, one after the other
	pairs := map[uint64][]int{} // of neighbours, by the size of the larger: where the second is in all
	for _, x := range filter(extents, dividable) {
		for n, s := range x.segments {
			if n > 0 {
				larger := max(x.segments[n-1].length(), s.length())
				pairs[larger] = append(pairs[larger], len(all))
			}
			all = append(all, s)
		}
	}
	shares, joined := make([]bool, len(all)), make([]bool, len(all)) // an extent; that of the one before
	for _, size := range slices.Sorted(maps.Keys(pairs)) {
		for _, at := range pairs[size] {
			cost := uint64(0)
			for _, i := range []int{at - 1, at} {
				if !shares[i] {
					cost += all[i].length()
				}
			}
			if cost <= left {
				left -= cost
				shares[at-1], shares[at], joined[at] = true, true, true
			}
		}
	}
	var p pace
	at := 0
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range extents {
		p.yield(e, len(x.segments))
		if !dividable(x) {
			bounded = append(bounded, x)
			continue
		}
		for range x.segments {
			if joined[at] {
				bounded[len(bounded)-1].add(all[at])
			} else {
				part := newExtent(all[at])
				part.owner = aTransition
				bounded = append(bounded, part)
			}
			at++
		}
	}
	return bounded
}

// spare returns how many bytes of a device nothing would miss but a program that grows by more than a quarter of the
// device. It is called while the memory that a resume is to take is still free. (cuMemGetInfo)
func (e *Engine) spare(d *device) uint64 {
	free, err := d.driver.FreeBytes(d.context)
	if err != nil {
		return 0
	}
	without := uint64(0) // bytes that are paused, whoever resumes them
	e.mu.Lock()
	defer e.mu.Unlock()
	e.visit(nil, func(of *device, s *segment) int {
		if of == d && s.state == paused && s.imported == nil {
			without += s.length()
		}
		return 1
	})
	reach, needs := free+d.quota.Has-min(without, d.quota.Has), d.quota.Most+d.total/sparePart
	return reach - min(needs, reach)
}
