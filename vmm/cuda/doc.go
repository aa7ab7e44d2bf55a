// Package cuda calls the CUDA driver API (libcuda.so.1) without cgo. It has the functions that the engine needs, under
// their own names; the CUDA Driver API reference says what each does. A failure is an *Error, with the call's name and
// its Result.
//
//	driver.go                         Driver: the library, its functions, one call
//	result.go                         Result and Error
//	device.go, context.go             devices; contexts, and work with one current (With)
//	memory.go, alloc.go               handles, mappings, access; plain allocations
//	copy.go, peer.go, onstream.go     streams, events, copies; between devices; work with a fresh stream
//	library.go                        kernels
//	pool.go                           what pools and graphs hold
//
// End keeps what the driver refuses to take back in the queue of package reclaim, which tries again later.
// A Driver is safe for use by many threads.
package cuda
