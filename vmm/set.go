package vmm

import (
	"errors"
	"fmt"
	"maps"

	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/mapping"
)

// The memory of a set belongs to no process: the keeper, which has no CUDA, holds its descriptors. All processes import
// it from there, its maker too. So import.go maps and unmaps it; this file has the rest.

// Keeper stands for the keeper in place of a PID.
const Keeper = -1

// MakeForSet makes memory on a device for the keeper, of at least size bytes. It returns the descriptor that alone
// holds it, which the caller closes, and its bytes. (cuMemCreate, cuMemExportToShareableHandle, cuMemRelease) Errors:
// *cuda.Error.
func (h Shared) MakeForSet(ordinal int, size uint64) (descriptor int, bytes uint64, err error) {
	e := h.engine
	e.mu.Lock()
	d, err := e.device(ordinal)
	if err == nil {
		e.hasher.LoadAside(d.context) // for SumsOfKept
	}
	e.mu.Unlock()
	if err != nil {
		return -1, 0, err
	}
	bytes = (size + d.granularity - 1) / d.granularity * d.granularity
	handle, err := d.driver.MemCreateWith(bytes, d.driver.Exportable(ordinal))
	if err != nil && !errors.Is(err, cuda.OutOfMemory) {
		err = fmt.Errorf("device %d, or its driver, makes no memory that can outlive its process: %w", ordinal, err)
	}
	if err != nil {
		return -1, 0, err
	}
	descriptor, err = d.driver.MemExport(handle)
	(&mapping.Mapping{Driver: d.driver, Handle: handle, Step: mapping.Created}).Drop()
	return descriptor, bytes, err
}

// Sums hashes complete memory of the keeper, by its descriptor, whether it is attached here, or paused, or not.
// Errors: *cuda.Error. (digest.Hasher.SumsOf)
func (h Shared) Sums(ordinal, descriptor int, bytes uint64, keys *digest.Keys) ([]digest.Sum, error) {
	e := h.engine
	e.mu.Lock()
	d, err := e.device(ordinal)
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	d.hashed.Store(true)
	return e.hasher.SumsOf(d.context, ordinal, descriptor, bytes, keys)
}

// Attach imports memory of the keeper, with a tag. Errors: as Import. (cuMemSetAccess: CU_MEM_ACCESS_FLAGS_PROT_READ)
func (h Shared) Attach(ordinal int, id uint64, tag string, readOnly bool) (uintptr, error) {
	e := h.engine
	return e.importAs(ordinal, Share{PID: Keeper, ID: id}, 0, tag, readOnly)
}

// Renumber gives paused memory of the keeper other numbers. Each has the old number's size.
func (h Shared) Renumber(numbers map[uint64]uint64) {
	e := h.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	moved := map[importKey]*segment{}
	for key, s := range e.sharing.imports {
		if to := numbers[key.share.ID]; key.share.PID == Keeper && to != 0 {
			other := *s.imported // a resume that has asked for the old number asks again
			other.share.ID = to
			if s.imported = &other; s.extent != nil {
				s.extent.imported = &other
			}
			delete(e.sharing.imports, key)
			moved[s.imported.key(s)] = s
		}
	}
	maps.Copy(e.sharing.imports, moved)
}

// Protect makes an import of Attach read-only, when the devices have finished with it. Errors: ErrInvalidAddress,
// ErrCapturing, *cuda.Error; it can then still be written. (cuCtxSynchronize, cuMemSetAccess)
func (h Shared) Protect(address uintptr) (err error) {
	e := h.engine
	defer e.audit(&err)
	if err := e.Quiesce(address); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.segmentAt(address)
	for s != nil && (s.owner == aTransition || s.extent != nil && s.extent.owner != nobody) {
		e.settled.Wait()
		s = e.segmentAt(address)
	}
	if s == nil || s.imported == nil || s.owner == aFree {
		return fmt.Errorf("%#x was not attached: %w", address, ErrInvalidAddress)
	}
	if s.imported.readOnly = true; s.state == active {
		err = e.engage([]*extent{s.extent}, func() error { return s.extent.Grant() })
		s.imported.readOnly = err == nil
	}
	return err
}
