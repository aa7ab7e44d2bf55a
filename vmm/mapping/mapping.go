// Package mapping has the driver's steps for memory at one place: one handle, one mapping. It knows neither who uses
// the memory nor where it comes from.
package mapping

import "tms/vmm/cuda"

// Mapping is physical memory at one place. Step records what the driver has done for it, so that any operation can be
// undone, or taken up again after an undo that itself failed.
type Mapping struct {
	Driver  *cuda.Driver
	Device  int // its ordinal
	Address uintptr
	Size    uint64
	Step    Step
	Handle  cuda.Handle
	// Instead takes the place of Handle once the driver unmaps that, which it has refused to do; or it is 0.
	Instead  cuda.Handle
	Exported bool // by the program, as what the driver makes of it
	Backing  Backing
}

// Step is how far a mapping has come.
type Step int

// A mapping goes through these, and back.
const (
	None       Step = iota
	Created         // Handle is valid
	Mapped          // and mapped at Address
	Accessible      // and the device has access
)

// Backing is where the memory comes from.
type Backing interface {
	// NewHandle makes the memory. (cuMemCreate)
	NewHandle() (cuda.Handle, error)
	// Goal returns the step that the mapping of active memory reaches.
	Goal() Step
	// Grant gives devices access to the mapping. (cuMemSetAccess)
	Grant() error
	// GiveBack is called when the driver has released the handle.
	GiveBack()
}

// Make takes the mapping from wherever it is to accessible. After an error it stays at the step that it had reached.
func (m *Mapping) Make() error {
	if err := m.Create(); err != nil {
		return err
	}
	return m.Attach()
}

// Create makes the memory, unless there is some.
func (m *Mapping) Create() error {
	if m.Step >= Created {
		return nil
	}
	handle, err := m.Backing.NewHandle()
	if err != nil {
		return err
	}
	m.Handle, m.Step = handle, Created
	return nil
}

// Attach maps the handle and gives devices access, as far as the backing's goal.
func (m *Mapping) Attach() error {
	if m.Instead != 0 {
		if err := m.Detach(); err != nil {
			return err
		}
	}
	goal := m.Backing.Goal()
	if m.Step < Mapped && Mapped <= goal {
		if err := m.Driver.MemMap(m.Address, m.Size, m.Handle); err != nil {
			return err
		}
		m.Step = Mapped
	}
	if m.Step < Accessible && Accessible <= goal {
		if err := m.Backing.Grant(); err != nil {
			return err
		}
		m.Step = Accessible
	}
	return nil
}

// Detach unmaps. The device must be idle: the driver does not wait for work in flight.
func (m *Mapping) Detach() error {
	if m.Step < Mapped {
		return nil
	}
	if err := m.Driver.MemUnmap(m.Address, m.Size); err != nil {
		return err
	}
	m.Step = Created
	if m.Instead != 0 {
		(&Mapping{Driver: m.Driver, Handle: m.Handle, Step: Created}).Drop()
		m.Handle, m.Instead = m.Instead, 0
	}
	return nil
}

// Release gives the physical memory back; it must be detached.
func (m *Mapping) Release() error {
	if m.Step == None {
		return nil
	}
	if err := m.Driver.MemRelease(m.Handle); err != nil {
		return err
	}
	m.Handle, m.Step, m.Exported = 0, None, false
	m.Backing.GiveBack()
	return nil
}

// Unmake takes the mapping from wherever it is to nothing.
func (m *Mapping) Unmake() error {
	if err := m.Detach(); err != nil {
		return err
	}
	return m.Release()
}

// Undo reverts a resume that has failed. With held, the memory was there before the resume, because an undo or a
// release had failed: it stays, because it may hold the only copy of contents.
func (m *Mapping) Undo(held bool) (err error) {
	if held {
		err = m.Detach()
	} else {
		err = m.Unmake()
	}
	m.Step = min(m.Step, Mapped) // it is paused: no allocation may take a part of it
	return err
}

// Unmap ends a mapping. Its contents are gone once it is unmapped, so a release that the driver refuses is made later,
// and the caller need not know.
func (m *Mapping) Unmap() error {
	if err := m.Detach(); err != nil {
		return err
	}
	m.Drop()
	return nil
}

// Drop releases what is not mapped, later if the driver refuses.
func (m *Mapping) Drop() {
	if driver, handle, backing := m.Driver, m.Handle, m.Backing; m.Step == Created {
		driver.End("device memory", func() error {
			err := driver.MemRelease(handle)
			if err == nil && backing != nil {
				backing.GiveBack()
			}
			return err
		})
	}
	m.Handle, m.Step = 0, None
}

// Aside maps the memory at one more place, for a while, where its device has no access to it or it is not mapped. The
// caller calls end when it has done its work there. (cuMemAddressReserve, cuMemMap, cuMemSetAccess)
func (m *Mapping) Aside() (address uintptr, end func(), err error) {
	d, size := m.Driver, m.Size
	if address, err = d.MemAddressReserve(size, 0); err != nil {
		return 0, nil, err
	}
	free := func() error { return d.MemAddressFree(address, size) }
	if err = d.MemMap(address, size, m.Handle); err != nil {
		d.End("addresses", free)
		return 0, nil, err
	}
	end = func() {
		d.End("mapping", func() error { return d.MemUnmap(address, size) })
		d.End("addresses", free)
	}
	if err = d.MemSetAccess(address, size, m.Device); err != nil {
		end()
	}
	return address, end, err
}
