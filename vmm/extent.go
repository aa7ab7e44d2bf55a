package vmm

import "tms/vmm/cuda"

// extent is physical memory at one place: one driver handle, one mapping. What the driver has done
// for it is kept step by step, so that every operation can be undone, or taken up again after an
// undo that itself failed.
type extent struct {
	address uintptr
	size    uint64
	handle  cuda.Handle
	created bool // handle is valid
	mapped  bool // handle is mapped at address
	open    bool // the device has access
}

// make takes the extent as far as it is from nothing to accessible. After an error it holds what
// had been reached.
func (x *extent) make(d *device) error {
	if err := x.create(d); err != nil {
		return err
	}
	return x.attach(d)
}

func (x *extent) create(d *device) error {
	if x.created {
		return nil
	}
	handle, err := d.driver.MemCreate(x.size, d.ordinal, d.rdma)
	if err != nil {
		return err
	}
	x.handle, x.created = handle, true
	return nil
}

// attach maps the handle and lets the device use it.
func (x *extent) attach(d *device) error {
	if !x.mapped {
		if err := d.driver.MemMap(x.address, x.size, x.handle); err != nil {
			return err
		}
		x.mapped = true
	}
	if !x.open {
		if err := d.driver.MemSetAccess(x.address, x.size, d.ordinal); err != nil {
			return err
		}
		x.open = true
	}
	return nil
}

// detach unmaps. The device must be idle: the driver does not wait for work in flight.
func (x *extent) detach(d *device) error {
	if !x.mapped {
		return nil
	}
	if err := d.driver.MemUnmap(x.address, x.size); err != nil {
		return err
	}
	x.mapped, x.open = false, false
	return nil
}

// release gives the physical memory back; the extent must be detached.
func (x *extent) release(d *device) error {
	if !x.created {
		return nil
	}
	if err := d.driver.MemRelease(x.handle); err != nil {
		return err
	}
	x.handle, x.created = 0, false
	return nil
}

// unmake takes the extent from wherever it is to nothing.
func (x *extent) unmake(d *device) error {
	if err := x.detach(d); err != nil {
		return err
	}
	return x.release(d)
}
