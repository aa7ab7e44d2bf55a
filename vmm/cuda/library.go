package cuda

import (
	"runtime"
	"unsafe"
)

// Library is a CUlibrary: loaded kernels.
type Library uintptr

// Kernel is a CUkernel: a kernel of a library.
type Kernel uintptr

// Function is a CUfunction: a kernel in one context.
type Function uintptr

// LibraryLoadData is cuLibraryLoadData without options, of PTX text or a binary. Like everything in this file it needs
// a driver of CUDA 12.0; an older one returns an error that is NotSupported.
func (d *Driver) LibraryLoadData(image []byte) (library Library, err error) {
	terminated := append(image[:len(image):len(image)], 0) // text ends with a zero
	err = d.call("cuLibraryLoadData", uintptr(unsafe.Pointer(&library)), uintptr(unsafe.Pointer(&terminated[0])),
		0, 0, 0, 0, 0, 0)
	return library, err
}

func (d *Driver) LibraryGetKernel(library Library, name string) (kernel Kernel, err error) {
	terminated := append([]byte(name), 0)
	err = d.call("cuLibraryGetKernel", uintptr(unsafe.Pointer(&kernel)), uintptr(library),
		uintptr(unsafe.Pointer(&terminated[0])))
	return kernel, err
}

// KernelGetFunction is cuKernelGetFunction, for the calling thread's context.
func (d *Driver) KernelGetFunction(kernel Kernel) (function Function, err error) {
	err = d.call("cuKernelGetFunction", uintptr(unsafe.Pointer(&function)), uintptr(kernel))
	return function, err
}

// LaunchKernel is cuLaunchKernel: grid blocks of block threads, in one dimension, without dynamic
// shared memory. Each of parameters points to a value, which is copied before LaunchKernel returns.
func (d *Driver) LaunchKernel(function Function, grid, block uint32, stream Stream,
	parameters ...unsafe.Pointer) error {
	var values runtime.Pinner
	defer values.Unpin()
	for _, parameter := range parameters {
		values.Pin(parameter)
	}
	return d.call("cuLaunchKernel", uintptr(function), uintptr(grid), 1, 1, uintptr(block), 1, 1, 0,
		uintptr(stream), uintptr(unsafe.Pointer(unsafe.SliceData(parameters))), 0)
}

// MemsetD32Async is cuMemsetD32Async: count words, each set to value.
func (d *Driver) MemsetD32Async(address uintptr, value uint32, count uint64, stream Stream) error {
	return d.call("cuMemsetD32Async", address, uintptr(value), uintptr(count), uintptr(stream))
}
