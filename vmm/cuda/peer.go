package cuda

import "unsafe"

// DeviceCanAccessPeer is cuDeviceCanAccessPeer: whether device can be given access to memory of peer.
func (d *Driver) DeviceCanAccessPeer(device, peer Device) (bool, error) {
	var can int32
	err := d.call("cuDeviceCanAccessPeer", uintptr(unsafe.Pointer(&can)), uintptr(device), uintptr(peer))
	return can != 0, err
}

// MemcpyDtoDAsync is cuMemcpyDtoDAsync: size bytes between two places that the device of the calling
// thread's context has access to.
func (d *Driver) MemcpyDtoDAsync(target, source uintptr, size uint64, stream Stream) error {
	return d.call("cuMemcpyDtoDAsync_v2", target, source, uintptr(size), uintptr(stream))
}
