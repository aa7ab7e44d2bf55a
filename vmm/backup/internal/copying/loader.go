package copying

import (
	"tms/internal/guard"
	"tms/vmm/backup"
	"tms/vmm/cuda"
)

// loader is the backup.Loader of contents that copies bring back. It makes the copies in the order in which they are
// added, on a thread and a stream of its own, while the driver maps more memory.
type loader[C backup.Contents] struct {
	jobs chan Copy
	list func(C, backup.Span, ...backup.Range) []Copy
	done chan error
}

// NewLoader starts a load. list gives the copies that bring a part of contents back, restore makes one.
func NewLoader[C backup.Contents](driver *cuda.Driver, job backup.Job,
	list func(C, backup.Span, ...backup.Range) []Copy, restore func(*Stream, Copy) error) backup.Loader {
	l := &loader[C]{jobs: make(chan Copy, 1024), list: list, done: make(chan error, 1)}
	go func() {
		l.done <- guard.Call(func() error {
			return On(driver, job, func(c *Stream) error {
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

func (l *loader[C]) Add(span backup.Span, contents backup.Contents) {
	for _, j := range l.list(contents.(C), span, backup.Range{Offset: 0, Size: span.Size}) {
		l.jobs <- j
	}
}

func (l *loader[C]) Wait() error {
	close(l.jobs)
	return <-l.done
}
