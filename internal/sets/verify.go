package sets

import (
	"errors"
	"fmt"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/sets/checksum"
	"tms/vmm/cuda"
	"tms/vmm/digest"
)

// Verify hashes a set on its device, and compares that with what was published. Of a demoted set it copies one chunk at
// a time to the device. Errors: as checksum.File.Verify, with the changes; why it cannot be hashed.
func Verify(name string) (set control.KeptSet, changes []checksum.Change, err error) {
	set, err = opened(name, func(set control.KeptSet, manifest int) (control.KeptSet, error) {
		file, err := checksum.Read(manifest)
		if err != nil {
			return set, err
		}
		var m mover
		if err := m.open(set.Device); err != nil {
			return set, err
		}
		defer m.close()
		hasher := digest.New(m.driver)
		defer hasher.Forget(m.context)
		hash := func(chunk control.KeptChunk, keys *digest.Keys) (sums []digest.Sum, err error) {
			var memory end
			if set.Place == Device {
				memory, err = lent(chunk, Device)
			} else {
				err = m.work(func(w worker) error { return m.copyChunk(w, chunk, set.Place, &memory, Device) })
			}
			defer memory.close()
			if errors.Is(err, cuda.OutOfMemory) {
				err = fmt.Errorf("its device has no room for %s of it: %w", readable.Bytes(chunk.Bytes), err)
			}
			if err != nil {
				return nil, err
			}
			return hasher.SumsOf(m.context, int(m.device), int(memory.files[0].Fd()), chunk.Bytes, keys)
		}
		changes, err = file.Verify(set.Chunks, hash)
		return set, err
	})
	return set, changes, err
}
