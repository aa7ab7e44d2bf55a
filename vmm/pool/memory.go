package pool

// Memory is a Source that knows the device's memory, with which a pool can compare its own.
type Memory interface {
	// Memory returns the device's free and total memory in bytes. (cudaMemGetInfo)
	Memory() (free, total uint64, err error)
}
