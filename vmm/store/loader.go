package store

import (
	"tms/internal/aid/guard"
	"tms/vmm/cuda"
)

// copyLoader is the Loader of contents that copies bring back. It makes the copies in the order in which they are
// added, on a thread and a stream of its own, while the driver maps more memory.
type copyLoader[C Contents] struct {
	jobs chan spanCopy
	list func(C, Span, ...Range) []spanCopy
	done chan error
}

// newCopyLoader starts a load. list gives the copies that bring a part of contents back, restore makes one.
func newCopyLoader[C Contents](driver *cuda.Driver, job Job,
	list func(C, Span, ...Range) []spanCopy, restore func(*copyStream, spanCopy) error) Loader {
	l := &copyLoader[C]{jobs: make(chan spanCopy, 1024), list: list, done: make(chan error, 1)}
	go func() {
		l.done <- guard.Call(func() error {
			return onCopyStream(driver, job, func(c *copyStream) error {
				for j := range l.jobs {
					if err := restore(c, j); err != nil {
						return err
					}
				}
				return nil
			})
		})
		for range l.jobs { // after an error: Add still must not block
		}
	}()
	return l
}

func (l *copyLoader[C]) Add(span Span, contents Contents) {
	for _, j := range l.list(contents.(C), span, Range{Offset: 0, Size: span.Size}) {
		l.jobs <- j
	}
}

func (l *copyLoader[C]) Wait() error {
	close(l.jobs)
	return <-l.done
}
