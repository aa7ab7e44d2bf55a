package cuda

import "unsafe"

// MemPool is a CUmemoryPool.
type MemPool uintptr

const (
	memPoolReservedCurrent  = 5 // CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
	graphMemReservedCurrent = 2 // CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
)

// DefaultMemPool is cuDeviceGetDefaultMemPool: the pool that a device always has.
func (d *Driver) DefaultMemPool(device Device) (pool MemPool, err error) {
	err = d.call("cuDeviceGetDefaultMemPool", uintptr(unsafe.Pointer(&pool)), uintptr(device))
	return pool, err
}

// MemPoolReserved returns how many bytes of its device a pool holds, used or not. (cuMemPoolGetAttribute)
func (d *Driver) MemPoolReserved(pool MemPool) (bytes uint64, err error) {
	err = d.call("cuMemPoolGetAttribute", uintptr(pool), memPoolReservedCurrent, uintptr(unsafe.Pointer(&bytes)))
	return bytes, err
}

// GraphMemReserved returns how many bytes of a device the allocations of graphs hold, used or not.
// (cuDeviceGetGraphMemAttribute)
func (d *Driver) GraphMemReserved(device Device) (bytes uint64, err error) {
	err = d.call("cuDeviceGetGraphMemAttribute", uintptr(device), graphMemReservedCurrent,
		uintptr(unsafe.Pointer(&bytes)))
	return bytes, err
}
