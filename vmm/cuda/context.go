package cuda

import (
	"errors"
	"runtime"
)

// With runs f on a locked thread with the context current to it, and leaves the thread's own as it was; the
// error is f's, or says that one of the two could not be. (cuCtxGetCurrent, cuCtxPushCurrent,
// cuCtxPopCurrent)
func (d *Driver) With(context Context, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
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
}
