package backup

import (
	"tms/internal/guard"
	"tms/vmm/cuda"
)

// loader is the Loader of contents that copies bring back: it makes them in the order in which they come,
// on a thread and a stream of its own, so that the driver can map memory meanwhile.
type loader[C Contents, J any] struct {
	jobs chan J
	list func(C, Span, ...Range) []J
	done chan error
}

func newLoader[C Contents, J any](driver *cuda.Driver, job Job, list func(C, Span, ...Range) []J,
	restore func(*copies, J) error) *loader[C, J] {
	l := &loader[C, J]{jobs: make(chan J, 1024), list: list, done: make(chan error, 1)}
	go func() {
		l.done <- guard.Call(func() error {
			return onCopies(driver, job, func(c *copies) error {
				for j := range l.jobs {
					if err := restore(c, j); err != nil {
						return err
					}
				}
				return nil
			})
		})
		for range l.jobs { // after an error: what is added still must not block
		}
	}()
	return l
}

func (l *loader[C, J]) Add(span Span, contents Contents) {
	for _, j := range l.list(contents.(C), span, Range{0, span.Size}) {
		l.jobs <- j
	}
}

func (l *loader[C, J]) Wait() error {
	close(l.jobs)
	return <-l.done
}
