// Package contexts waits for the work of all CUDA contexts of a process: those that the program has made, too.
package contexts

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tms/internal/aid/backoff"
	"tms/vmm/cuda"
)

var (
	// ErrCapturing: a stream is being captured into a graph; end the capture first.
	ErrCapturing = cuda.Refuse(cuda.StreamCaptureUnsupported,
		"a stream is being captured into a CUDA graph; end the capture, then call again")

	// ErrUnknown: there could be no waiting for work in the current context before memory is taken away.
	ErrUnknown = cuda.Refuse(cuda.NotSupported, "the current CUDA context was made where this library could not see "+
		"it (by a function that was found with dlsym, or as a green context), so its work could not be waited for "+
		"before memory is paused; allocate with the primary context current, or outside regions")
)

// Process knows the contexts of the program, and when it captures streams (vmm.Host).
type Process interface {
	Contexts(ordinal int, use func(cuda.Context) error) error
	WithoutCaptures(call func() error) error
}

// Contexts are those of a process. They are safe for use by many threads.
type Contexts struct {
	driver  *cuda.Driver
	process Process
	primary func(ordinal int) cuda.Context
	aside   atomic.Bool // a thread is in awaitAside
}

// New returns the contexts of a process. primary returns a device's primary context if the engine has retained it, or
// 0.
func New(driver *cuda.Driver, process Process, primary func(ordinal int) cuda.Context) *Contexts {
	return &Contexts{driver: driver, process: process, primary: primary}
}

// Finish waits for every context of the process, because any of them can be using memory of the devices: a copy by
// another device's stream needs no access where the driver stages it. The driver does not wait when memory is unmapped;
// work that still uses it dies with a sticky error.
//
// The program decides how long that takes: a stream may wait for a host thread, which may be about to call the engine.
// So the caller holds no lock and has claimed nothing. (cuCtxRecordEvent, cuEventSynchronize)
func (c *Contexts) Finish(devices ...int) error {
	err := c.each(func(ordinal int, context cuda.Context) error {
		err := c.synchronize(context)
		if cuda.Ended(err) && !slices.Contains(devices, ordinal) {
			return nil // its work has ended with it, and the memory is not on its device
		}
		return err
	})
	if captureForbids(err) {
		return fmt.Errorf("%w: %w", ErrCapturing, err)
	}
	return err
}

func captureForbids(err error) bool {
	return errors.Is(err, cuda.StreamCaptureUnsupported) || errors.Is(err, cuda.StreamCaptureImplicit)
}

// each calls use with every context: the primary ones, and those that the program has made.
func (c *Contexts) each(use func(ordinal int, context cuda.Context) error) error {
	count, err := c.driver.DeviceCount()
	for ordinal := 0; ordinal < count && err == nil; ordinal++ {
		of := func(context cuda.Context) error { return use(ordinal, context) }
		if err = c.withPrimary(ordinal, of); err == nil {
			err = c.process.Contexts(ordinal, of)
		}
	}
	return err
}

// withPrimary calls use with a device's primary context, if there is one, and neither makes nor keeps it.
func (c *Contexts) withPrimary(ordinal int, use func(cuda.Context) error) error {
	if context := c.primary(ordinal); context != 0 {
		return use(context)
	}
	device, err := c.driver.DeviceGet(ordinal)
	if err != nil {
		return err
	}
	if active, err := c.driver.DevicePrimaryCtxGetState(device); err != nil || !active {
		return err
	}
	context, err := c.driver.DevicePrimaryCtxRetain(device)
	if err != nil {
		return err
	}
	defer c.driver.End("context", func() error { return c.driver.DevicePrimaryCtxRelease(device) })
	return use(context)
}

// synchronize waits for a context. On drivers before CUDA 12.5 no capture may begin while it enters cuCtxSynchronize,
// but it cannot keep the program from beginning one for as long as that call waits.
func (c *Contexts) synchronize(context cuda.Context) error {
	return c.driver.With(context, func() error {
		event, err := c.record(context)
		if errors.Is(err, cuda.NotSupported) {
			return c.driver.CtxSynchronize()
		}
		if err != nil {
			return err
		}
		defer c.driver.DropEvent(event)
		return c.driver.EventSynchronize(event)
	})
}

// record records an event behind all work that the context has so far. That breaks captures, so it is done at a
// moment without any. Errors: cuda.NotSupported before CUDA 12.5; cuda.StreamCaptureUnsupported.
func (c *Contexts) record(context cuda.Context) (event cuda.Event, err error) {
	if event, err = c.driver.EventCreate(); err != nil {
		return 0, err
	}
	if err = c.process.WithoutCaptures(func() error { return c.driver.CtxRecordEvent(context, event) }); err != nil {
		c.driver.DropEvent(event)
	}
	return event, err
}

// Admit refuses a thread in a context that there could be no waiting for. It gives a thread without a context the given
// primary one, as the first runtime call of a thread does. (cuCtxGetCurrent, cuCtxSetCurrent)
func (c *Contexts) Admit(primary, current cuda.Context) error {
	if current == primary {
		return nil
	}
	runtime.LockOSThread() // the calls ask about one thread
	defer runtime.UnlockOSThread()
	context, err := c.driver.CtxGetCurrent()
	switch {
	case err != nil || context == primary:
		return err
	case context == 0:
		return c.driver.CtxSetCurrent(primary)
	}
	ordinal, err := c.driver.CtxGetDevice()
	if err != nil {
		return err
	}
	known := false
	look := func(one cuda.Context) error {
		known = known || one == context
		return nil
	}
	if err := c.withPrimary(ordinal, look); err != nil || known {
		return err
	}
	if err := c.process.Contexts(ordinal, look); err != nil || known {
		return err
	}
	return ErrUnknown
}

// errBusy: a device has not finished its work in time.
var errBusy = errors.New("the devices have not finished the work that they were given")

// AwaitIdle waits until all contexts of all devices have done their work, as long as the program gives them no more. It
// polls instead of waiting in the driver, so that it can give up: it then returns the device that has not finished,
// else -1. Errors: ErrCapturing, *cuda.Error. (cuCtxRecordEvent, cuEventQuery, cuCtxSynchronize)
func (c *Contexts) AwaitIdle(until time.Time) (busy int, err error) {
	busy = -1
	err = c.each(func(ordinal int, context cuda.Context) error {
		err := c.driver.With(context, func() error { return c.await(context, until) })
		if cuda.Gone(err) || errors.Is(err, cuda.InvalidHandle) {
			return nil // the program has reset the device: its work and our event ended with the context
		}
		if captureForbids(err) {
			return fmt.Errorf("%w: %w", ErrCapturing, err)
		}
		if errors.Is(err, errBusy) {
			busy = ordinal
		}
		return err
	})
	return busy, err
}

// await waits for the current context. The caller runs on a locked thread.
func (c *Contexts) await(context cuda.Context, until time.Time) error {
	event, err := c.record(context)
	if errors.Is(err, cuda.NotSupported) {
		return c.awaitAside(context, until)
	}
	if err != nil {
		return err
	}
	defer c.driver.DropEvent(event)
	for wait := soonAgain; ; {
		if err = c.driver.EventQuery(event); err == nil || !errors.Is(err, cuda.NotReady) {
			return err
		}
		if !wait.Sleep(until) {
			return errBusy
		}
	}
}

// soonAgain paces the polling where a pause is held up.
var soonAgain = backoff.Backoff{Next: 20 * time.Microsecond, Most: 200 * time.Microsecond}

// awaitAside is for drivers before CUDA 12.5, which have no event for a whole context. A thread of the engine
// waits in the driver, and may still wait there after awaitAside has given up; there is one such thread at a
// time.
func (c *Contexts) awaitAside(context cuda.Context, until time.Time) error {
	for wait := soonAgain; !c.aside.CompareAndSwap(false, true); {
		if !wait.Sleep(until) {
			return errBusy
		}
	}
	result := make(chan error, 1)
	go func() {
		defer c.aside.Store(false)
		result <- c.synchronize(context)
	}()
	select {
	case err := <-result:
		return err
	case <-time.After(time.Until(until)):
		return errBusy
	}
}

// Users are the devices that get access to a device's memory: the device itself, and those with peer access to it that
// the process uses. Any device can copy cudaMalloc's memory, and its kernels can read it once peer access is enabled;
// mapped memory needs its access set beforehand.
type Users struct {
	device  int
	looking sync.Mutex // held while they are looked up
	list    atomic.Pointer[[]int]
}

// NewUsers returns the users of a device's memory, which are the device alone so far.
func NewUsers(device int) *Users {
	u := &Users{device: device}
	u.list.Store(&[]int{device})
	return u
}

// List returns the users as they were last found, the device first.
func (u *Users) List() []int { return *u.list.Load() }

// FindUsers finds out which of a device's peers the process uses: those with a context.
func (c *Contexts) FindUsers(u *Users, peers *atomic.Pointer[[]int]) {
	u.looking.Lock()
	defer u.looking.Unlock()
	list := []int{u.device}
	for _, peer := range *peers.Load() { // under the lock, so that the list of the latest peers is the last one
		used, err := c.driver.DevicePrimaryCtxGetState(cuda.Device(peer))
		if used = used && err == nil; !used {
			_ = c.process.Contexts(peer, func(cuda.Context) error {
				used = true
				return nil
			})
		}
		if used {
			list = append(list, peer)
		}
	}
	u.list.Store(&list)
}
