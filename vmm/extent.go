package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/store"
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
	exports  []uint64 // names of freed segments that other processes may still have mapped (sharing.importers)
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

// detachAll unmaps extents. After an error it maps those again that it has unmapped, and returns those of them that the
// driver refuses to map.
func detachAll(extents []*extent) (stuck []*extent, err error) {
	var undo []*extent
	for _, x := range extents {
		wasMapped := x.step >= mapped
		if err := x.detach(); err != nil {
			return filter(undo, func(u *extent) bool { return u.attach() != nil }), err
		}
		if wasMapped {
			undo = append(undo, x)
		}
	}
	return nil, nil
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

// unmap ends an extent. Its contents are gone once it is unmapped, so a release that the driver refuses is made later,
// and the caller need not know.
func (x *extent) unmap() error {
	if err := x.detach(); err != nil {
		return err
	}
	x.drop()
	return nil
}

// drop releases what an unmapped extent holds, later if the driver refuses.
func (x *extent) drop() {
	if driver, handle, from := x.device.driver, x.handle, x.backing; x.step == created {
		driver.End("device memory", func() error {
			err := driver.MemRelease(handle)
			if err == nil {
				from.giveBack()
			}
			return err
		})
	}
	x.handle, x.step = 0, none
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

// prop returns the properties of the engine's own memory on a device that cannot be exported.
func (d *device) prop() cuda.AllocationProp {
	if d.rdma {
		return cuda.PinnedOn(d.ordinal).ForRDMA()
	}
	return cuda.PinnedOn(d.ordinal)
}

// create makes the memory of an extent. (cuMemCreate)
func (b backing) create(x *extent) (cuda.Handle, error) {
	if f := b.userMapped; f != nil {
		return x.device.driver.MemCreateWith(f.size, f.prop)
	}
	d := x.device
	prop := d.prop()
	if !d.shareable.Load() {
		return d.driver.MemCreateWith(x.size, prop)
	}
	handle, err := d.driver.MemCreateWith(x.size, prop.AsFile())
	if err == nil {
		d.shares.Store(true)
	}
	refused := errors.Is(err, cuda.NotSupported) || errors.Is(err, cuda.NotPermitted) ||
		errors.Is(err, cuda.InvalidValue)
	if refused && !x.named {
		// The device reports that it can, but a virtual device or a sandbox may refuse.
		if plain, failed := d.driver.MemCreateWith(x.size, prop); failed == nil {
			x.plain = true
			d.shareable.Store(d.shares.Load())
			return plain, nil
		}
	}
	return handle, err
}

// goal returns the step that the extent of an active segment reaches.
func (b backing) goal() step {
	switch f := b.userMapped; {
	case f == nil || f.mapped && len(f.access) > 0:
		return accessible
	case f.mapped:
		return mapped
	}
	return created
}

// giveBack tells the process that owns imported memory that this process no longer holds it.
func (b backing) giveBack() {
	if i := b.imported; i != nil && i.number != 0 {
		i.tell(i.number)
		i.number = 0
	}
}

// aside maps an extent for a resume alone, where its device has no access to it or the program has not mapped it:
// contents come back there. The caller calls end when they have. (cuMemAddressReserve, cuMemMap, cuMemSetAccess)
func (x *extent) aside() (address uintptr, end func(), err error) {
	d, size := x.device.driver, x.size
	if address, err = d.MemAddressReserve(size, 0); err != nil {
		return 0, nil, err
	}
	free := func() error { return d.MemAddressFree(address, size) }
	if err = d.MemMap(address, size, x.handle); err != nil {
		d.End("addresses", free)
		return 0, nil, err
	}
	end = func() {
		d.End("mapping", func() error { return d.MemUnmap(address, size) })
		d.End("addresses", free)
	}
	if err = d.MemSetAccess(address, size, x.device.ordinal); err != nil {
		end()
	}
	return address, end, err
}

// users lists the devices that get access to a device's memory: the device itself, and those with peer access to it
// that the process uses. Any device can copy cudaMalloc's memory, and its kernels can read it once peer access is
// enabled; mapped memory needs its access set beforehand.
func (d *device) users() []int { return *d.access.Load() }

// refreshUsers finds out which devices the process uses: those with a context.
func (e *Engine) refreshUsers(d *device) {
	d.looking.Lock()
	defer d.looking.Unlock()
	list := []int{d.ordinal}
	for _, peer := range *d.peers.Load() {
		used, err := d.driver.DevicePrimaryCtxGetState(cuda.Device(peer))
		if used = used && err == nil; !used {
			_ = e.process.Contexts(peer, func(cuda.Context) error {
				used = true
				return nil
			})
		}
		if used {
			list = append(list, peer)
		}
	}
	d.access.Store(&list)
}

// Grant gives the devices that the process has begun to use access to the existing segments. Segments made or resumed
// later get it when they are mapped, and those in a transition at its end. Errors: *cuda.Error, of the first that
// failed. (cuMemSetAccess)
func (e *Engine) Grant() (err error) {
	defer e.audit(&err)
	for _, d := range e.known() {
		if len(*d.peers.Load()) == 0 {
			continue
		}
		e.refreshUsers(d)
		var p pace
		chosen := e.choose(nil, func(s *segment) bool { return s.device == d && s.extent != nil })
		e.mu.Lock()
		for _, s := range chosen {
			if s.extent != nil {
				err = cmp.Or(err, e.grantMissing(s.extent))
			}
			p.yield(e, 1)
		}
		e.mu.Unlock()
	}
	return err
}

// grantMissing gives an extent the access that it lacks, unless a transition owns the extent and so gives it at its
// end. It first waits for a driver call on the extent, which may give access only to the devices known when it began.
// The caller holds e.mu, which is released for driver calls.
func (e *Engine) grantMissing(x *extent) error {
	for x.owner == aCall {
		e.settled.Wait()
	}
	if x.owner != nobody || !x.stale() {
		return nil
	}
	return e.engage([]*extent{x}, func() error { return x.grant(x) })
}

// grantLate gives the extents of a transition the access that Grant could not give them. The caller holds e.mu, which
// is released for driver calls.
func (e *Engine) grantLate(b *batch) {
	err := e.unlocked(func() error { // the extents are the transition's
		for {
			stale := filter(b.extents, (*extent).stale)
			if len(stale) == 0 {
				return nil
			}
			for _, x := range stale {
				if err := x.grant(x); err != nil {
					return err
				}
			}
		}
	})
	if err != nil {
		_ = e.unlocked(func() error {
			e.process.Warn(fmt.Sprintf("device %d: other devices could not be given access to memory: %v",
				b.device.ordinal, err))
			return nil
		})
	}
}

// stale reports whether devices have come into use since the extent was mapped.
func (x *extent) stale() bool {
	return x.step == accessible && x.isOwn() && !slices.Equal(x.users, x.device.users())
}

// grant gives devices access to a mapped extent. (cuMemSetAccess)
func (b backing) grant(x *extent) error {
	if b.isUserMapped() {
		return x.device.driver.MemSetAccessOf(x.address, x.size, b.userMapped.access)
	}
	users := x.device.users()
	if b.isImported() {
		users = []int{x.device.ordinal} // one with access to this device may lack access to the one that has the memory
		if b.imported.readOnly {
			own := cuda.Location{Kind: cuda.LocationDevice, ID: int32(x.device.ordinal)}
			read := []cuda.AccessDesc{{Location: own, Flags: cuda.AccessRead}}
			return x.device.driver.MemSetAccessOf(x.address, x.size, read)
		}
	}
	err := x.device.driver.MemSetAccess(x.address, x.size, users...)
	if err == nil {
		x.users = users
	}
	return err
}

// waitsHere reports whether all contents of a paused extent wait in memory that a move has put on its device.
func (x *extent) waitsHere() bool {
	return !slices.ContainsFunc(x.segments, func(s *segment) bool {
		return s.contents == nil || !store.Portable(s.contents)
	})
}

// pauseHeld makes paused the outcome of a segment whose extent alone has what it holds: neither older contents nor a
// poison must come back in its place.
func (s *segment) pauseHeld() {
	s.outcome.state, s.outcome.current, s.outcome.sums, s.outcome.held = paused, false, nil, true
}
