package cuda

import (
	"runtime"

	"tms/internal/guard"
)

// OnStream runs f with the context current to a locked thread and a fresh stream, and waits for the
// stream's work even when f fails: memory it copies to or from may go away after.
func (d *Driver) OnStream(context Context, f func(Stream) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.CtxPushCurrent(context); err != nil {
		return err
	}
	defer func() { _, _ = d.CtxPopCurrent() }()
	stream, err := d.StreamCreate()
	if err != nil {
		return err
	}
	err = guard.Call(func() error { return f(stream) })
	if waited := d.StreamSynchronize(stream); err == nil {
		err = waited
	}
	if d.StreamDestroy(stream) != nil {
		// Once more, so that a passing refusal leaks nothing; the work itself is done.
		_ = d.StreamDestroy(stream)
	}
	return err
}
