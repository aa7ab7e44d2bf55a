package pool

// Memory is what a Source may also be, so that a pool can compare its holdings with the device's memory.
type Memory interface {
	// Memory returns the device's free and total memory in bytes. (cudaMemGetInfo)
	Memory() (free, total uint64, err error)
}
