package backup

import (
	"fmt"

	"tms/vmm/cuda"
)

// copyJob is one copy that the driver takes: its host side lies in one unit.
type copyJob struct {
	device, host uintptr
	size         uint64
	unit         int
}

// copies issues copies on one stream and reports them as they are done: copies are asynchronous, so
// every markEvery bytes an event follows them.
type copies struct {
	driver *cuda.Driver
	job    Job
	stream cuda.Stream
	issued uint64 // bytes since the last mark
	marks  []copyMark
}

type copyMark struct {
	event cuda.Event
	bytes uint64
}

const markEvery = 256 << 20

// onCopies runs f on a locked thread that has the job's context and a fresh stream, and waits for what
// f has issued even when it fails: memory copied to or from may go away after.
func onCopies(driver *cuda.Driver, job Job, f func(*copies) error) error {
	return driver.OnStream(job.Context, func(stream cuda.Stream) error {
		c := &copies{driver: driver, job: job, stream: stream}
		defer c.drop()
		if err := f(c); err != nil {
			return err
		}
		for len(c.marks) > 0 {
			if err := driver.EventSynchronize(c.marks[0].event); err != nil {
				return err
			}
			c.reached()
		}
		if err := driver.StreamSynchronize(stream); err != nil {
			return err
		}
		job.copied(c.issued)
		return nil
	})
}

func (c *copies) toHost(jobs []copyJob) error {
	for _, j := range jobs {
		if err := c.driver.MemcpyDtoHAsync(j.host, j.device, j.size, c.stream); err != nil {
			return fmt.Errorf("copying device memory to the host: %w", err)
		}
		c.mark(j.size)
	}
	return nil
}

func (c *copies) toDevice(j copyJob) error {
	if err := c.driver.MemcpyHtoDAsync(j.device, j.host, j.size, c.stream); err != nil {
		return fmt.Errorf("copying host memory to the device: %w", err)
	}
	c.mark(j.size)
	return nil
}

// mark notes bytes as issued. Where the driver gives no event they count with the next one.
func (c *copies) mark(bytes uint64) {
	if c.issued += bytes; c.issued < markEvery || c.job.Copied == nil {
		return
	}
	for len(c.marks) > 0 && c.driver.EventQuery(c.marks[0].event) == nil {
		c.reached()
	}
	event, err := c.driver.EventCreate()
	if err != nil {
		return
	}
	if c.driver.EventRecord(event, c.stream) != nil {
		c.driver.DropEvent(event)
		return
	}
	c.marks = append(c.marks, copyMark{event, c.issued})
	c.issued = 0
}

// reached reports the first mark.
func (c *copies) reached() {
	c.job.copied(c.marks[0].bytes)
	c.driver.DropEvent(c.marks[0].event)
	c.marks = c.marks[1:]
}

func (c *copies) drop() {
	for _, m := range c.marks {
		c.driver.DropEvent(m.event)
	}
}
