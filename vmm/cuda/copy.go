package cuda

import "unsafe"

// Stream is a CUstream.
type Stream uintptr

const (
	hostRegisterPortable = 1
	streamNonBlocking    = 1
)

// MemHostRegister is cuMemHostRegister with PORTABLE: pins size bytes of host memory for every
// context.
func (d *Driver) MemHostRegister(address uintptr, size uint64) error {
	return d.call(fnMemHostRegister, address, uintptr(size), hostRegisterPortable)
}

// MemHostUnregister is cuMemHostUnregister of a whole registered range.
func (d *Driver) MemHostUnregister(address uintptr) error {
	return d.call(fnMemHostUnregister, address)
}

// MemHostGetDevicePointer is cuMemHostGetDevicePointer: where kernels find registered host memory.
func (d *Driver) MemHostGetDevicePointer(address uintptr) (device uintptr, err error) {
	err = d.call(fnMemHostGetDevicePointer, uintptr(unsafe.Pointer(&device)), address, 0)
	return device, err
}

// MemcpyDtoHAsync is cuMemcpyDtoHAsync: size bytes from device memory to registered host memory.
func (d *Driver) MemcpyDtoHAsync(host, device uintptr, size uint64, stream Stream) error {
	return d.call(fnMemcpyDtoHAsync, host, device, uintptr(size), uintptr(stream))
}

// MemcpyHtoDAsync is cuMemcpyHtoDAsync: size bytes from registered host memory to device memory.
func (d *Driver) MemcpyHtoDAsync(device, host uintptr, size uint64, stream Stream) error {
	return d.call(fnMemcpyHtoDAsync, device, host, uintptr(size), uintptr(stream))
}

// StreamCreate is cuStreamCreate with NON_BLOCKING, in the calling thread's context.
func (d *Driver) StreamCreate() (stream Stream, err error) {
	err = d.call(fnStreamCreate, uintptr(unsafe.Pointer(&stream)), streamNonBlocking)
	return stream, err
}

// StreamSynchronize is cuStreamSynchronize.
func (d *Driver) StreamSynchronize(stream Stream) error {
	return d.call(fnStreamSynchronize, uintptr(stream))
}

// StreamDestroy is cuStreamDestroy.
func (d *Driver) StreamDestroy(stream Stream) error {
	return d.call(fnStreamDestroy, uintptr(stream))
}

// Event is a CUevent.
type Event uintptr

const eventBlockingWithoutTiming = 1 | 2

// StreamGetCtx is cuStreamGetCtx: for the default streams the calling thread's context.
func (d *Driver) StreamGetCtx(stream Stream) (context Context, err error) {
	err = d.call(fnStreamGetCtx, uintptr(stream), uintptr(unsafe.Pointer(&context)))
	return context, err
}

// EventCreate is cuEventCreate with BLOCKING_SYNC and DISABLE_TIMING.
func (d *Driver) EventCreate() (event Event, err error) {
	err = d.call(fnEventCreate, uintptr(unsafe.Pointer(&event)), eventBlockingWithoutTiming)
	return event, err
}

// EventRecord is cuEventRecord.
func (d *Driver) EventRecord(event Event, stream Stream) error {
	return d.call(fnEventRecord, uintptr(event), uintptr(stream))
}

// CtxRecordEvent is cuCtxRecordEvent: the event completes when the context has done all that it was given so far. The
// event's context must be that one. NotSupported before CUDA 12.5.
func (d *Driver) CtxRecordEvent(context Context, event Event) error {
	return d.call(fnCtxRecordEvent, uintptr(context), uintptr(event))
}

// StreamQuery is cuStreamQuery; an error that is NotReady means that the stream has work left.
func (d *Driver) StreamQuery(stream Stream) error {
	return d.call(fnStreamQuery, uintptr(stream))
}

// EventQuery is cuEventQuery; an error that is NotReady means that the work goes on.
func (d *Driver) EventQuery(event Event) error {
	return d.call(fnEventQuery, uintptr(event))
}

// EventSynchronize is cuEventSynchronize.
func (d *Driver) EventSynchronize(event Event) error {
	return d.call(fnEventSynchronize, uintptr(event))
}

// EventDestroy is cuEventDestroy.
func (d *Driver) EventDestroy(event Event) error {
	return d.call(fnEventDestroy, uintptr(event))
}
