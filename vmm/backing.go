package vmm

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/cuda"
)

// backing says where memory comes from, and which side maps it. A segment and its extent have the same.
//
//	own          the engine makes the memory and maps it, as cudaMalloc does
//	user-mapped  the program makes it, or has it from another process, and maps it (usermapped.go)
//	imported     another process has made it; the engine maps it, or the program (import.go)
type backing struct {
	userMapped *userMapped
	imported   *imported
}

func (b backing) isOwn() bool        { return b == backing{} }
func (b backing) isUserMapped() bool { return b.userMapped != nil }
func (b backing) isImported() bool   { return b.imported != nil }

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

// giveBack tells the process that owns imported memory that this process no longer holds it.
func (b backing) giveBack() {
	if i := b.imported; i != nil && i.number != 0 {
		i.tell(i.number)
		i.number = 0
	}
}

// pausable reports whether a pause has something to take from a segment. User-mapped memory stays as it is where its
// device has no access, because its contents cannot be moved then, and where others hold the memory itself. Imported
// memory has no contents to move.
func (s *segment) pausable() bool {
	return s.is(active) && (!s.isUserMapped() || s.isImported() || s.userMapped.lent == 0 && s.accessible())
}

// accessible reports whether the segment's device can read and write the memory, so that contents can be moved.
func (s *segment) accessible() bool {
	own := cuda.Location{Kind: cuda.LocationDevice, ID: int32(s.device.ordinal)}
	return !s.isUserMapped() ||
		slices.Contains(s.userMapped.access, cuda.AccessDesc{Location: own, Flags: cuda.AccessReadWrite})
}

// lost returns the error for imported memory that will not come back.
func (s *segment) lost() error {
	if !s.isImported() || !s.imported.lost {
		return nil
	}
	return fmt.Errorf("the memory at %#x was %v's and is lost; close it (%s): %w", s.address,
		s.imported.share, s.closedBy(), ErrShareGone)
}

// closedBy names the calls by which a program ends an import.
func (b backing) closedBy() string {
	switch {
	case b.isUserMapped():
		return "cuMemUnmap, cuMemRelease"
	case b.imported.share.PID == Keeper:
		return "tms_kept_close"
	}
	return "cudaIpcCloseMemHandle"
}
