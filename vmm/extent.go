package vmm

import (
	"tms/vmm/cuda"
)

// extent is physical memory at one place: one driver handle, one mapping. A cudaMalloc makes one for its segment; a
// resume makes them for many segments at once, because the driver charges per handle. step records what the driver has
// done for it, so that any operation can be undone, or taken up again after an undo that itself failed.
type extent struct {
	device   *device
	address  uintptr
	size     uint64
	segments []*segment // by address; those in slack are free, but cannot be released alone
	live     int        // segments that are not in slack
	shared   bool       // device.shared counts it
	owner    owner
	step     step
	backing
	named    bool // other processes may ask for it, so it must be exportable
	plain    bool // it cannot be exported
	exported bool // by the program, as what the driver makes of it
	handle   cuda.Handle
	users    []int    // devices that have access
	lent     []uint64 // names of freed segments that other processes may still have mapped (sharing.importers)
}

// step is how far an extent has come.
type step int

const (
	none       step = iota
	created         // handle is valid
	mapped          // and mapped at address
	accessible      // and the device has access
)

// newExtent returns an extent without memory for a segment.
func newExtent(s *segment) *extent {
	x := &extent{device: s.device, address: s.address, backing: s.backing, named: s.shared != 0}
	x.add(s)
	return x
}

// add makes room for a segment behind those of an extent without memory.
func (x *extent) add(s *segment) {
	x.segments = append(x.segments, s)
	x.live++
	x.size += s.length()
}

// make takes the extent from wherever it is to accessible. After an error it stays at the step that it had reached.
func (x *extent) make() error {
	if err := x.create(); err != nil {
		return err
	}
	return x.attach()
}

func (x *extent) create() error {
	if x.step >= created {
		return nil
	}
	handle, err := x.backing.create(x)
	if err != nil {
		return err
	}
	x.handle, x.step = handle, created
	return nil
}

// attach maps the handle and gives devices access; of user-mapped memory it does as much as the program had done.
func (x *extent) attach() error {
	goal := x.goal()
	if x.step < mapped && mapped <= goal {
		if err := x.device.driver.MemMap(x.address, x.size, x.handle); err != nil {
			return err
		}
		x.step = mapped
	}
	if x.step < accessible && accessible <= goal {
		if err := x.grant(x); err != nil {
			return err
		}
		x.step = accessible
	}
	return nil
}

// detach unmaps. The device must be idle: the driver does not wait for work in flight.
func (x *extent) detach() error {
	if x.step < mapped {
		return nil
	}
	if err := x.device.driver.MemUnmap(x.address, x.size); err != nil {
		return err
	}
	x.step = created
	return nil
}

// release gives the physical memory back; the extent must be detached.
func (x *extent) release() error {
	if x.step == none {
		return nil
	}
	if err := x.device.driver.MemRelease(x.handle); err != nil {
		return err
	}
	x.handle, x.step, x.exported = 0, none, false
	x.giveBack()
	return nil
}

// unmake takes the extent from wherever it is to nothing.
func (x *extent) unmake() error {
	if err := x.detach(); err != nil {
		return err
	}
	return x.release()
}

// undo reverts a failed resume. Memory that an extent held before, because an undo or a release had failed, stays held:
// it may hold the only copy of contents.
func (x *extent) undo() error {
	undo := x.unmake
	if x.segments[0].extent == x {
		undo = x.detach
	}
	err := undo()
	x.step = min(x.step, mapped) // its segments are paused: no allocation may take a part of it
	return err
}

// dissolve separates the segments from an extent that no longer has memory; its slack is gone with the memory.
func (e *Engine) dissolve(x *extent) {
	if len(x.lent) > 0 {
		e.sharing.forgetImporters(x.lent...)
		x.lent = nil
	}
	if x.shared {
		x.shared = false
		x.device.shared -= x.size
	}
	for _, s := range x.segments {
		if s.extent != x { // a compaction has put another in its place
			continue
		}
		if s.extent = nil; s.state == slack {
			s.tag.removeSlack(s)
			s.vacate()
		}
	}
}

// engage makes a driver call on extents, and owns them during the call. The caller holds e.mu, which is released for
// the call.
func (e *Engine) engage(extents []*extent, call func() error) error {
	for _, x := range extents {
		x.owner = aCall
	}
	err := e.unlocked(call)
	for _, x := range extents {
		x.owner = nobody
	}
	e.settled.Broadcast()
	return err
}
