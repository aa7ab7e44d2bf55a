package cuda

import (
	"cmp"

	"tms/internal/aid/guard"
)

// OnStream runs f as With does, with a fresh stream, and waits for the stream's work even when f fails: the memory of
// its copies may go away afterwards.
func (d *Driver) OnStream(context Context, f func(Stream) error) error {
	return d.With(context, func() error {
		stream, err := d.StreamCreate()
		if err != nil {
			return err
		}
		err = guard.Call(func() error { return f(stream) })
		err = cmp.Or(err, d.StreamSynchronize(stream))
		d.DropStream(stream)
		return err
	})
}

// DropStream is cuStreamDestroy, and tries again later when that is refused. (cuStreamDestroy)
func (d *Driver) DropStream(stream Stream) {
	d.End("stream", func() error { return destroyed(d.StreamDestroy(stream)) })
}

// DropEvent is cuEventDestroy, and tries again later when that is refused. (cuEventDestroy)
func (d *Driver) DropEvent(event Event) {
	d.End("event", func() error { return destroyed(d.EventDestroy(event)) })
}

// End calls end until that returns no error. When it is refused, End tries a second time at once, because most refusals
// pass; then the queue of Reclaim tries, on a thread with the same context, if that still exists. what names such a
// thing, for statistics.
func (d *Driver) End(what string, end func() error) {
	if end() == nil {
		return
	}
	err := end()
	if err == nil {
		return
	}
	context, _ := d.CtxGetCurrent()
	d.Reclaim.Keep(what, uintptr(context), err, func() (err error) {
		entered := false
		_ = d.With(context, func() error {
			entered, err = true, end()
			return nil
		})
		if !entered {
			err = end()
		}
		return err
	})
}

// destroyed returns the error of a destroy call that can be repeated. After a kernel's fault every call returns that
// error, whether it was carried out or not, and nothing may be destroyed twice.
func destroyed(err error) error {
	if sticky(err) {
		return nil
	}
	return err
}
