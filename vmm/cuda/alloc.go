package cuda

import "unsafe"

// MemAlloc is cuMemAlloc: size bytes of the device of the calling thread's context.
func (d *Driver) MemAlloc(size uint64) (uintptr, error) {
	var address uintptr
	err := d.call(fnMemAlloc, uintptr(unsafe.Pointer(&address)), uintptr(size))
	return address, err
}

// MemFree is cuMemFree. It waits for the device's work.
func (d *Driver) MemFree(address uintptr) error {
	return d.call(fnMemFree, address)
}
