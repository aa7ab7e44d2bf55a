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
	return d.call("cuMemHostRegister_v2", address, uintptr(size), hostRegisterPortable)
}

// MemHostUnregister is cuMemHostUnregister of a whole registered range.
func (d *Driver) MemHostUnregister(address uintptr) error {
	return d.call("cuMemHostUnregister", address)
}

// MemHostGetDevicePointer is cuMemHostGetDevicePointer: where kernels find registered host memory.
func (d *Driver) MemHostGetDevicePointer(address uintptr) (device uintptr, err error) {
	err = d.call("cuMemHostGetDevicePointer_v2", uintptr(unsafe.Pointer(&device)), address, 0)
	return device, err
}

// MemcpyDtoHAsync is cuMemcpyDtoHAsync: size bytes from device memory to registered host memory.
func (d *Driver) MemcpyDtoHAsync(host, device uintptr, size uint64, stream Stream) error {
	return d.call("cuMemcpyDtoHAsync_v2", host, device, uintptr(size), uintptr(stream))
}

// MemcpyHtoDAsync is cuMemcpyHtoDAsync: size bytes from registered host memory to device memory.
func (d *Driver) MemcpyHtoDAsync(device, host uintptr, size uint64, stream Stream) error {
	return d.call("cuMemcpyHtoDAsync_v2", device, host, uintptr(size), uintptr(stream))
}

// MemcpyDtoDAsync is cuMemcpyDtoDAsync: size bytes between two places that the device of the calling
// thread's context has access to.
func (d *Driver) MemcpyDtoDAsync(target, source uintptr, size uint64, stream Stream) error {
	return d.call("cuMemcpyDtoDAsync_v2", target, source, uintptr(size), uintptr(stream))
}

// StreamCreate is cuStreamCreate with NON_BLOCKING, in the calling thread's context.
func (d *Driver) StreamCreate() (stream Stream, err error) {
	err = d.call("cuStreamCreate", uintptr(unsafe.Pointer(&stream)), streamNonBlocking)
	return stream, err
}

func (d *Driver) StreamSynchronize(stream Stream) error {
	return d.call("cuStreamSynchronize", uintptr(stream))
}

func (d *Driver) StreamDestroy(stream Stream) error {
	return d.call("cuStreamDestroy_v2", uintptr(stream))
}

// Event is a CUevent.
type Event uintptr

const eventBlockingWithoutTiming = 1 | 2

// StreamGetCtx is cuStreamGetCtx: for the default streams the calling thread's context.
func (d *Driver) StreamGetCtx(stream Stream) (context Context, err error) {
	err = d.call("cuStreamGetCtx", uintptr(stream), uintptr(unsafe.Pointer(&context)))
	return context, err
}

// StreamGetID is cuStreamGetId: a number that no other stream of the process ever has.
func (d *Driver) StreamGetID(stream Stream) (id uint64, err error) {
	err = d.call("cuStreamGetId", uintptr(stream), uintptr(unsafe.Pointer(&id)))
	return id, err
}

// StreamWaitEvent is cuStreamWaitEvent: later work of the stream waits for the event.
func (d *Driver) StreamWaitEvent(stream Stream, event Event) error {
	return d.call("cuStreamWaitEvent", uintptr(stream), uintptr(event), 0)
}

// EventCreate is cuEventCreate with BLOCKING_SYNC and DISABLE_TIMING.
func (d *Driver) EventCreate() (event Event, err error) {
	err = d.call("cuEventCreate", uintptr(unsafe.Pointer(&event)), eventBlockingWithoutTiming)
	return event, err
}

func (d *Driver) EventRecord(event Event, stream Stream) error {
	return d.call("cuEventRecord", uintptr(event), uintptr(stream))
}

// CtxRecordEvent is cuCtxRecordEvent: the event completes when the context has done all that it was given so far. The
// event's context must be that one. NotSupported before CUDA 12.5.
func (d *Driver) CtxRecordEvent(context Context, event Event) error {
	return d.call("cuCtxRecordEvent", uintptr(context), uintptr(event))
}

// EventQuery is cuEventQuery; an error that is NotReady means that the work goes on.
func (d *Driver) EventQuery(event Event) error { return d.call("cuEventQuery", uintptr(event)) }

func (d *Driver) EventSynchronize(event Event) error {
	return d.call("cuEventSynchronize", uintptr(event))
}

func (d *Driver) EventDestroy(event Event) error { return d.call("cuEventDestroy_v2", uintptr(event)) }
