package vmm

import (
	"cmp"
	"fmt"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
)

// Grant gives the devices that the process has begun to use access to the existing segments. Segments made or resumed
// later get it when they are mapped, and those in a transition at its end. Errors: *cuda.Error, of the first that
// failed. (cuMemSetAccess)
func (e *Engine) Grant() (err error) {
	defer e.audit(&err)
	for _, d := range e.known() {
		if len(*d.peers.Load()) == 0 {
			continue
		}
		e.contexts.FindUsers(d.users, &d.peers)
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
				if err := x.Grant(); err != nil {
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
	return e.engage([]*extent{x}, func() error { return x.Grant() })
}

// stale reports whether devices have come into use since the extent was mapped.
func (x *extent) stale() bool {
	return x.Step == mapping.Accessible && x.backing == own && !slices.Equal(x.users, x.device.users.List())
}

// Grant gives devices access to a mapped extent. (cuMemSetAccess)
func (x *extent) Grant() error {
	if x.userMapped != nil {
		return x.device.driver.MemSetAccessOf(x.Address, x.Size, x.userMapped.access)
	}
	users := x.device.users.List()
	if x.imported != nil {
		users = []int{x.device.ordinal} // one with access to this device may lack access to the one that has the memory
		if x.imported.readOnly {
			read := []cuda.AccessDesc{{Location: cuda.OnDevice(x.device.ordinal), Flags: cuda.AccessRead}}
			return x.device.driver.MemSetAccessOf(x.Address, x.Size, read)
		}
	}
	err := x.device.driver.MemSetAccess(x.Address, x.Size, users...)
	if err == nil {
		x.users = users
	}
	return err
}
