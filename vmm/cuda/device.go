package cuda

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is a CUdevice.
type Device int32

// Context is a CUcontext; 0 is none.
type Context uintptr

// Attribute is a CUdevice_attribute.
type Attribute int32

// The attributes that this project asks for.
const (
	AttributeIntegrated                       Attribute = 18
	AttributeNUMAConfig                       Attribute = 130
	AttributeHostNUMAID                       Attribute = 134
	AttributeVirtualMemoryManagementSupported Attribute = 102
	AttributeHandleTypeFileSupported          Attribute = 103 // ..._HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	AttributeGPUDirectRDMAWithVMMSupported    Attribute = 110
)

// DeviceCount is cuDeviceGetCount.
func (d *Driver) DeviceCount() (int, error) {
	var count int32
	err := d.call("cuDeviceGetCount", uintptr(unsafe.Pointer(&count)))
	return int(count), err
}

func (d *Driver) DeviceGet(ordinal int) (device Device, err error) {
	err = d.call("cuDeviceGet", uintptr(unsafe.Pointer(&device)), uintptr(ordinal))
	return device, err
}

// DeviceAttribute is cuDeviceGetAttribute.
func (d *Driver) DeviceAttribute(attribute Attribute, device Device) (int, error) {
	var value int32
	err := d.call("cuDeviceGetAttribute", uintptr(unsafe.Pointer(&value)), uintptr(attribute), uintptr(device))
	return int(value), err
}

// SharesHostMemory reports whether a device's memory is that of the host, as in a GB10 or a Jetson. That of a GH200 is a
// NUMA node of its own, whatever the device says of being integrated.
func (d *Driver) SharesHostMemory(device Device) bool {
	const ownNode = 1 // CU_DEVICE_NUMA_CONFIG_NUMA_NODE
	integrated, err := d.DeviceAttribute(AttributeIntegrated, device)
	if err != nil || integrated == 0 {
		return false
	}
	node, err := d.DeviceAttribute(AttributeNUMAConfig, device)
	return err != nil || node != ownNode
}

// DeviceName is cuDeviceGetName; the name of a part of a GPU ends with " MIG " and the part.
func (d *Driver) DeviceName(device Device) (string, error) {
	text := make([]byte, 256)
	err := d.call("cuDeviceGetName", uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), uintptr(device))
	return unix.ByteSliceToString(text), err
}

// DeviceUUID is cuDeviceGetUuid, as NVML writes it: for a part of a GPU it is the GPU's.
func (d *Driver) DeviceUUID(device Device) (string, error) {
	var n [16]byte
	err := d.call("cuDeviceGetUuid", uintptr(unsafe.Pointer(&n)), uintptr(device))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", n[:4], n[4:6], n[6:8], n[8:10], n[10:]), err
}

// DeviceBy returns the ordinal of the device with a UUID, or -1.
func (d *Driver) DeviceBy(uuid string) int {
	count, _ := d.DeviceCount() // without devices there is none
	for ordinal := range count {
		if found, err := d.DeviceUUID(Device(ordinal)); err == nil && found == uuid {
			return ordinal
		}
	}
	return -1
}

// DeviceTotalMem is cuDeviceTotalMem, in bytes.
func (d *Driver) DeviceTotalMem(device Device) (bytes uint64, err error) {
	err = d.call("cuDeviceTotalMem_v2", uintptr(unsafe.Pointer(&bytes)), uintptr(device))
	return bytes, err
}

// DeviceCanAccessPeer is cuDeviceCanAccessPeer: whether device can be given access to memory of peer.
func (d *Driver) DeviceCanAccessPeer(device, peer Device) (bool, error) {
	var can int32
	err := d.call("cuDeviceCanAccessPeer", uintptr(unsafe.Pointer(&can)), uintptr(device), uintptr(peer))
	return can != 0, err
}

// DevicePrimaryCtxRetain is cuDevicePrimaryCtxRetain: the context that the CUDA runtime uses.
func (d *Driver) DevicePrimaryCtxRetain(device Device) (context Context, err error) {
	err = d.call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&context)), uintptr(device))
	return context, err
}

// DevicePrimaryCtxRelease is cuDevicePrimaryCtxRelease, for one DevicePrimaryCtxRetain.
func (d *Driver) DevicePrimaryCtxRelease(device Device) error {
	return d.call("cuDevicePrimaryCtxRelease_v2", uintptr(device))
}

// DevicePrimaryCtxGetState is cuDevicePrimaryCtxGetState: whether the context exists.
func (d *Driver) DevicePrimaryCtxGetState(device Device) (active bool, err error) {
	var flags uint32
	var state int32
	err = d.call("cuDevicePrimaryCtxGetState", uintptr(device), uintptr(unsafe.Pointer(&flags)),
		uintptr(unsafe.Pointer(&state)))
	return state != 0, err
}

// CtxGetCurrent is cuCtxGetCurrent: the calling thread's context, 0 if it has none.
func (d *Driver) CtxGetCurrent() (context Context, err error) {
	err = d.call("cuCtxGetCurrent", uintptr(unsafe.Pointer(&context)))
	return context, err
}

func (d *Driver) CtxSetCurrent(context Context) error {
	return d.call("cuCtxSetCurrent", uintptr(context))
}

func (d *Driver) CtxPushCurrent(context Context) error {
	return d.call("cuCtxPushCurrent_v2", uintptr(context))
}

func (d *Driver) CtxPopCurrent() (context Context, err error) {
	err = d.call("cuCtxPopCurrent_v2", uintptr(unsafe.Pointer(&context)))
	return context, err
}

// CtxGetDevice is cuCtxGetDevice: the ordinal of the device of the calling thread's context.
func (d *Driver) CtxGetDevice() (int, error) {
	var device int32
	err := d.call("cuCtxGetDevice", uintptr(unsafe.Pointer(&device)))
	return int(device), err
}

// CtxSynchronize is cuCtxSynchronize, for the calling thread's context.
func (d *Driver) CtxSynchronize() error { return d.call("cuCtxSynchronize") }

// captureMode is a CUstreamCaptureMode.
type captureMode int32

const captureModeRelaxed captureMode = 2

// exchangeCaptureMode returns the calling thread's old mode.
func (d *Driver) exchangeCaptureMode(mode captureMode) (captureMode, error) {
	err := d.call("cuThreadExchangeStreamCaptureMode", uintptr(unsafe.Pointer(&mode)))
	return mode, err
}
