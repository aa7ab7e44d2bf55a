package tier

import (
	"errors"
	"fmt"
	"os"

	"tms/internal/checksum"
	"tms/internal/control"
	"tms/internal/readable"
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
			open := lent
			if set.Place != Device {
				open = func(chunk control.KeptChunk) (memory *os.File, err error) {
					err = m.work(func(w worker) (err error) {
						memory, err = m.copyChunk(w, chunk, set.Place, Device)
						return err
					})
					return memory, err
				}
			}
			memory, err := open(chunk)
			if errors.Is(err, cuda.OutOfMemory) {
				err = fmt.Errorf("its device has no room for %s of it: %w", readable.Bytes(chunk.Bytes), err)
			}
			if err != nil {
				return nil, err
			}
			defer func() { _ = memory.Close() }()
			return hasher.SumsOf(m.context, int(m.device), int(memory.Fd()), chunk.Bytes, keys)
		}
		changes, err = file.Verify(set.Chunks, hash)
		return set, err
	})
	return set, changes, err
}
