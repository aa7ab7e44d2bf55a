package vmm

import (
	"slices"

	"tms/vmm/cuda"
)

// Memory is what CUDA says of an address while its memory is active.
type Memory struct {
	Device int
	// Base and Size are the allocation's.
	Base uintptr
	Size uint64
	// Mapping and MappingSize are those of the granules around it.
	Mapping     uintptr
	MappingSize uint64
	Prop        cuda.AllocationProp
	// ID is the same as long as the memory is.
	ID uint64
	// Own is for memory that the engine has made, as cudaMalloc would; Shareable for what Share can name.
	Own, Shareable bool
	access         []cuda.AccessDesc
}

// Access returns the flags of a device's access (cuda.AccessReadWrite, ...), 0 for none.
func (m Memory) Access(device int) int32 {
	for _, a := range m.access {
		if a.Location == cuda.OnDevice(device) {
			return a.Flags
		}
	}
	return 0
}

// bufferID stands at the top of numbers that CUDA does not give out.
const bufferID = 1 << 63

// MemoryAt describes the live allocation around an address, active or not: the driver knows nothing of an address where
// no memory is mapped, but a program may ask it at any time. It reports whether there is memory that is not a lost
// import.
func (r Records) MemoryAt(address uintptr) (m Memory, ok bool) {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.around(address)
	s := a.segment
	if s == nil || s.imported != nil && s.imported.lost {
		return Memory{}, false
	}
	m = Memory{Device: s.device.ordinal, Base: a.address(), Size: a.size(), Mapping: s.address,
		MappingSize: s.length(), ID: bufferID | uint64(s.address)}
	if f := s.userMapped; f != nil {
		m.Prop, m.access = f.prop, slices.Clone(f.access)
		return m, true
	}
	m.Own = s.backing == own
	m.Shareable = m.Own && e.shareable && !s.plain()
	if m.Prop = s.device.prop(); s.device.shareable.Load() {
		m.Prop = m.Prop.AsFile()
	}
	for _, user := range s.device.users.List() {
		m.access = append(m.access, cuda.AccessDesc{Location: cuda.OnDevice(user), Flags: cuda.AccessReadWrite})
	}
	return m, true
}

// PropOf returns the properties with which the memory behind one of our handles was made. Errors: ErrNotOurs,
// cuda.InvalidValue.
func (m UserMapped) PropOf(handle cuda.Handle) (cuda.AllocationProp, error) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.byHandle(handle)
	if err != nil {
		return cuda.AllocationProp{}, err
	}
	return s.userMapped.prop, nil
}
