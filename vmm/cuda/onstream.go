package cuda

import (
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
	d.refused.end(func() error { return d.StreamDestroy(stream) })
	return err
}

// DropEvent is cuEventDestroy, and again later when it is refused. (cuEventDestroy)
func (d *Driver) DropEvent(event Event) {
	d.refused.end(func() error { return d.EventDestroy(event) })
}

// Tidy ends the streams and events that the driver has refused to end before. (cuStreamDestroy,
// cuEventDestroy)
func (d *Driver) Tidy(context Context) {
	if d.refused.none() {
		return
	}
	_ = d.OnStream(context, func(Stream) error { return nil })
}

// refused is what could not be ended, so that a passing refusal leaks nothing.
type refused struct {
	mu   sync.Mutex
	ends []func() error
}

func (r *refused) none() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ends) == 0
}

func (r *refused) end(end func() error) {
	for range 2 {
		// After a fault of a kernel everything returns that error, whether it was done or not.
		if err := end(); err == nil || sticky(err) {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, end)
}

func (r *refused) tidy() {
	r.mu.Lock()
	ends := r.ends
	r.ends = nil
	r.mu.Unlock()
	for _, end := range ends {
		r.end(end)
	}
}
