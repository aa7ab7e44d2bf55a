package cuda

import "unsafe"

// Handle is a CUmemGenericAllocationHandle: physical memory without an address.
type Handle uint64

// Location is a CUmemLocation.
type Location struct {
	Kind int32 // 1: device
	ID   int32
}

// OnDevice is the place of a device's memory.
func OnDevice(device int) Location { return Location{Kind: LocationDevice, ID: int32(device)} }

// CUmemLocationType.
const (
	LocationDevice   = 1
	locationHostNUMA = 3
)

// AllocationProp is a CUmemAllocationProp.
type AllocationProp struct {
	kind                 int32 // 1: pinned
	requestedHandleTypes int32
	location             Location
	win32HandleMetaData  uintptr
	compressionType      uint8
	gpuDirectRDMACapable uint8
	usage                uint16
	reserved             [4]uint8
}

const allocationPinned = 1

// AccessDesc is a CUmemAccessDesc.
type AccessDesc struct {
	Location Location
	Flags    int32
}

// CUmemAccess_flags.
const (
	AccessRead      = 1 // CU_MEM_ACCESS_FLAGS_PROT_READ
	AccessReadWrite = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
)

// PinnedOn asks for ordinary memory of a device.
func PinnedOn(device int) AllocationProp {
	return AllocationProp{
		kind:     allocationPinned,
		location: OnDevice(device),
	}
}

// HostExtent is how many bytes an extent of host memory has that processes pass on.
const HostExtent = 256 << 20

// HostExtentOn asks for an extent of host memory on a NUMA node, which any process can map by its descriptor. (CUDA 12.2)
func HostExtentOn(node int) AllocationProp {
	return AllocationProp{kind: allocationPinned, location: Location{Kind: locationHostNUMA, ID: int32(node)}}.AsFile()
}

// HostNode returns the NUMA node of the host memory nearest to a device, or the first if that is unknown.
func (d *Driver) HostNode(device Device) (int, error) {
	node, err := d.DeviceAttribute(AttributeHostNUMAID, device)
	return max(0, node), err
}

// MemGetInfo is cuMemGetInfo for the calling thread's context, in bytes.
func (d *Driver) MemGetInfo() (free, total uint64, err error) {
	err = d.call("cuMemGetInfo_v2", uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}

// FreeBytes returns the device's own figure for free memory of a context's device, in bytes.
func (d *Driver) FreeBytes(context Context) (bytes uint64, err error) {
	err = d.With(context, func() error {
		bytes, _, err = d.MemGetInfo()
		return err
	})
	return bytes, err
}

// MemGetAllocationGranularity is cuMemGetAllocationGranularity (the minimum), in bytes.
func (d *Driver) MemGetAllocationGranularity(device int) (granularity uint64, err error) {
	prop := PinnedOn(device)
	err = d.call("cuMemGetAllocationGranularity", uintptr(unsafe.Pointer(&granularity)),
		uintptr(unsafe.Pointer(&prop)), 0)
	return granularity, err
}

// MemAddressReserve is cuMemAddressReserve. size and alignment are in bytes.
func (d *Driver) MemAddressReserve(size, alignment uint64) (address uintptr, err error) {
	err = d.call("cuMemAddressReserve", uintptr(unsafe.Pointer(&address)), uintptr(size), uintptr(alignment), 0, 0)
	return address, err
}

// MemAddressFree is cuMemAddressFree of a whole reservation.
func (d *Driver) MemAddressFree(address uintptr, size uint64) error {
	return d.call("cuMemAddressFree", address, uintptr(size))
}

// MemCreate is cuMemCreate: size bytes of a device's memory, a multiple of the granularity.
func (d *Driver) MemCreate(size uint64, device int) (Handle, error) {
	return d.MemCreateWith(size, PinnedOn(device))
}

// ForRDMA asks for memory that GPUDirect RDMA can use too, as cudaMalloc's can be.
func (p AllocationProp) ForRDMA() AllocationProp {
	p.gpuDirectRDMACapable = 1
	return p
}

// AsFile asks for memory that can be exported as a file descriptor
// (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR).
func (p AllocationProp) AsFile() AllocationProp {
	p.requestedHandleTypes |= handleTypeFile
	return p
}

// Exportable asks for memory that can be exported as a file descriptor, usable for GPUDirect RDMA if the device can.
func (d *Driver) Exportable(device int) AllocationProp {
	rdma, err := d.DeviceAttribute(AttributeGPUDirectRDMAWithVMMSupported, Device(device))
	if err == nil && rdma != 0 { // older drivers do not know the attribute
		return PinnedOn(device).AsFile().ForRDMA()
	}
	return PinnedOn(device).AsFile()
}

// HandleTypes returns the kinds of handles by which the memory can be exported (CUmemAllocationHandleType).
func (p AllocationProp) HandleTypes() int32 { return p.requestedHandleTypes }

// IsForRDMA reports whether GPUDirect RDMA can use the memory.
func (p AllocationProp) IsForRDMA() bool { return p.gpuDirectRDMACapable != 0 }

// IsFile reports whether the memory can be exported as a file descriptor.
func (p AllocationProp) IsFile() bool { return p.requestedHandleTypes&handleTypeFile != 0 }

// MemCreateWith is cuMemCreate with the given properties.
func (d *Driver) MemCreateWith(size uint64, prop AllocationProp) (handle Handle, err error) {
	err = d.call("cuMemCreate", uintptr(unsafe.Pointer(&handle)), uintptr(size), uintptr(unsafe.Pointer(&prop)), 0)
	return handle, err
}

func (d *Driver) MemRelease(handle Handle) error { return d.call("cuMemRelease", uintptr(handle)) }

// MemMap is cuMemMap of a whole handle; the driver refuses offsets into one.
func (d *Driver) MemMap(address uintptr, size uint64, handle Handle) error {
	return d.call("cuMemMap", address, uintptr(size), 0, uintptr(handle), 0)
}

// MemUnmap is cuMemUnmap of one or more whole mappings. It does not wait for work in flight.
func (d *Driver) MemUnmap(address uintptr, size uint64) error {
	return d.call("cuMemUnmap", address, uintptr(size))
}

// MemSetAccess is cuMemSetAccess: lets devices read and write one or more whole mappings.
func (d *Driver) MemSetAccess(address uintptr, size uint64, devices ...int) error {
	descs := make([]AccessDesc, len(devices))
	for i, device := range devices {
		descs[i] = AccessDesc{Location: Location{Kind: LocationDevice, ID: int32(device)}, Flags: AccessReadWrite}
	}
	return d.MemSetAccessOf(address, size, descs)
}

// MemSetAccessOf is cuMemSetAccess with any access that is asked for.
func (d *Driver) MemSetAccessOf(address uintptr, size uint64, descs []AccessDesc) error {
	return d.call("cuMemSetAccess", address, uintptr(size), uintptr(unsafe.Pointer(unsafe.SliceData(descs))),
		uintptr(len(descs)))
}

// Mapped maps whole handles, of size bytes each, one after the other at addresses of their own for the time of a call,
// which waits for the work that it gives the device. (cuMemAddressReserve, cuMemMap, cuMemSetAccess)
func (d *Driver) Mapped(handles []Handle, size uint64, device int, use func(address uintptr) error) error {
	all := uint64(len(handles)) * size
	address, err := d.MemAddressReserve(all, 0)
	if err != nil {
		return err
	}
	defer d.End("addresses", func() error { return d.MemAddressFree(address, all) })
	for i, handle := range handles {
		at := address + uintptr(i)*uintptr(size)
		if err = d.MemMap(at, size, handle); err != nil {
			return err
		}
		defer d.End("mapping", func() error { return d.MemUnmap(at, size) })
	}
	if err = d.MemSetAccess(address, all, device); err != nil {
		return err
	}
	return use(address)
}

const handleTypeFile = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

// MemExport is cuMemExportToShareableHandle, as a file descriptor, which the caller closes.
func (d *Driver) MemExport(handle Handle) (descriptor int, err error) {
	made := int32(-1) // stays so after an error: 0 is the caller's standard input
	err = d.call("cuMemExportToShareableHandle", uintptr(unsafe.Pointer(&made)), uintptr(handle), handleTypeFile, 0)
	return int(made), err
}

// MemCreateFile creates memory that only a file descriptor holds, which the caller closes. (cuMemCreate,
// cuMemExportToShareableHandle, cuMemRelease)
func (d *Driver) MemCreateFile(size uint64, prop AllocationProp) (descriptor int, err error) {
	handle, err := d.MemCreateWith(size, prop)
	if err != nil {
		return -1, err
	}
	defer d.End("handle", func() error { return d.MemRelease(handle) })
	return d.MemExport(handle)
}

// MemImport is cuMemImportFromShareableHandle of a file descriptor, which stays the caller's.
func (d *Driver) MemImport(descriptor int) (handle Handle, err error) {
	err = d.call("cuMemImportFromShareableHandle", uintptr(unsafe.Pointer(&handle)), uintptr(descriptor),
		handleTypeFile)
	return handle, err
}

// MemHostAlloc is cuMemHostAlloc with PORTABLE: size bytes of pinned host memory, for every context.
func (d *Driver) MemHostAlloc(size uint64) (address uintptr, err error) {
	err = d.call("cuMemHostAlloc", uintptr(unsafe.Pointer(&address)), uintptr(size), hostRegisterPortable)
	return address, err
}

func (d *Driver) MemFreeHost(address uintptr) error { return d.call("cuMemFreeHost", address) }
