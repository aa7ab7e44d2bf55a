package cuda

import "unsafe"

// MemAlloc is cuMemAlloc: size bytes on the device of the calling thread's context.
func (d *Driver) MemAlloc(size uint64) (address uintptr, err error) {
	err = d.call("cuMemAlloc_v2", uintptr(unsafe.Pointer(&address)), uintptr(size))
	return address, err
}

// MemHostAlloc is cuMemHostAlloc with PORTABLE: size bytes of pinned host memory, for every context.
func (d *Driver) MemHostAlloc(size uint64) (address uintptr, err error) {
	err = d.call("cuMemHostAlloc", uintptr(unsafe.Pointer(&address)), uintptr(size), hostRegisterPortable)
	return address, err
}

func (d *Driver) MemFreeHost(address uintptr) error { return d.call("cuMemFreeHost", address) }

// MemFree is cuMemFree. It waits for the device's work.
func (d *Driver) MemFree(address uintptr) error { return d.call("cuMemFree_v2", address) }
