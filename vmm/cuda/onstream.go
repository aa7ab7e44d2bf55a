package cuda

import (
	"slices"
	"sync"

	"tms/internal/guard"
)

// OnStream runs f as With does, with a fresh stream, and waits for the stream's work even when f fails:
// memory it copies to or from may go away after.
func (d *Driver) OnStream(context Context, f func(Stream) error) error {
	return d.With(context, func() error { return d.onStream(f) })
}

func (d *Driver) onStream(f func(Stream) error) error {
	stream, err := d.StreamCreate()
	if err != nil {
		return err
	}
	err = guard.Call(func() error { return f(stream) })
	if waited := d.StreamSynchronize(stream); err == nil {
		err = waited
	}
	d.refused.tidy()
	d.End(func() error { return destroyed(d.StreamDestroy(stream)) })
	return err
}

// DropEvent is cuEventDestroy, and again later when it is refused. (cuEventDestroy)
func (d *Driver) DropEvent(event Event) {
	d.End(func() error { return destroyed(d.EventDestroy(event)) })
}

// Tidy ends what the driver has refused to end before: streams, events, whatever End was given.
func (d *Driver) Tidy(context Context) {
	if d.refused.none() {
		return
	}
	_ = d.OnStream(context, func(Stream) error { return nil })
}

// Forget drops those of a context that is about to be reset: they end with it.
func (d *Driver) Forget(context Context) {
	d.refused.mu.Lock()
	defer d.refused.mu.Unlock()
	d.refused.ends = slices.DeleteFunc(d.refused.ends, func(r refusal) bool { return r.context == context })
}

// refused is what could not be ended, so that a passing refusal leaks nothing.
type refused struct {
	mu   sync.Mutex
	ends []refusal
}

type refusal struct {
	context Context // 0: not known
	end     func() error
}

func (r *refused) none() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ends) == 0
}

// End ends something of the calling thread's context: it calls end until that returns no error, a second
// time at once when it is refused, then at each Tidy.
func (d *Driver) End(end func() error) {
	if ended(end) {
		return
	}
	context, _ := d.CtxGetCurrent()
	d.refused.mu.Lock()
	defer d.refused.mu.Unlock()
	d.refused.ends = append(d.refused.ends, refusal{context, end})
}

func ended(end func() error) bool {
	if end() == nil {
		return true
	}
	return end() == nil // what has only been refused in passing
}

// destroyed is the error of a destroy that can be made again. After a fault of a kernel everything returns
// that error, whether it was done or not, and nothing may be destroyed twice.
func destroyed(err error) error {
	if sticky(err) {
		return nil
	}
	return err
}

func (r *refused) tidy() {
	r.mu.Lock()
	ends := r.ends
	r.ends = nil
	r.mu.Unlock()
	ends = slices.DeleteFunc(ends, func(r refusal) bool { return ended(r.end) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, ends...)
}
