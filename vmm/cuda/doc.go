// Package cuda calls the CUDA driver API (libcuda.so.1) without cgo. It has the functions that the engine needs, under
// their own names; the CUDA Driver API reference says what each does, and a comment here only what is particular. A
// failure is an *Error, with the call's name and its Result.
//
// End keeps what the driver refuses to take back in the queue of package reclaim, which tries again later.
// A Driver is safe for use by many threads.
package cuda
