package cuda

import (
	"errors"
	"runtime"
)

// With runs f as Relaxed does, with the context current in the thread, and restores the thread's own afterwards. The
// error is f's, or says which of the two failed. (cuCtxGetCurrent, cuCtxPushCurrent, cuCtxPopCurrent)
func (d *Driver) With(context Context, f func() error) error {
	return d.Relaxed(func() error {
		before, err := d.CtxGetCurrent()
		if err != nil {
			return err
		}
		if before == context {
			return f()
		}
		if err := d.CtxPushCurrent(context); err != nil {
			return err
		}
		err = f()
		if _, popped := d.CtxPopCurrent(); popped != nil {
			if d.CtxSetCurrent(before) != nil { // whether it was popped or not
				err = errors.Join(err, popped)
			}
		}
		return err
	})
}

// Relaxed runs f on a locked thread that may do what it does while streams are being captured. In the mode that threads
// begin with, most calls that wait, query work, or pin memory are refused then, and break the capture of whichever
// thread; cuCtxSynchronize does so in any mode. (cuThreadExchangeStreamCaptureMode)
func (d *Driver) Relaxed(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode, err := d.exchangeCaptureMode(captureModeRelaxed)
	if err != nil {
		return err
	}
	defer func() { _, _ = d.exchangeCaptureMode(mode) }()
	return f()
}
