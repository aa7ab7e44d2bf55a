// Package copying issues copies between device memory and where contents are saved.
package store

import (
	"fmt"

	"tms/vmm/cuda"
)

// spanCopy is a copy between device memory and a piece of what keeps contents.
type spanCopy struct {
	Device, Saved uintptr
	Size          uint64
	Piece         int
}

// cutCopies lists the copies between parts of a span and its saved contents, which begin at saved; each copy stays within
// one piece. A piece has the given bytes, and saved lies at the offset into from the start of the pieces.
func cutCopies(span Span, saved uintptr, into, bytes uint64, parts []Range) []spanCopy {
	var copies []spanCopy
	for _, part := range parts {
		for offset, end := part.Offset, part.Offset+part.Size; offset < end; {
			place := into + offset
			size := min(end-offset, bytes-place%bytes)
			copies = append(copies, spanCopy{
				Device: span.Address + uintptr(offset),
				Saved:  saved + uintptr(offset),
				Size:   size,
				Piece:  int(place / bytes),
			})
			offset += size
		}
	}
	return copies
}

// copyStream issues copies on one stream and reports them as they are done. Copies are asynchronous, so an event
// follows every markEvery bytes.
type copyStream struct {
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

// onCopyStream runs f on a locked thread that has the job's context and a fresh stream, and waits for what f has issued
// even when f fails: the memory of the copies may go away afterwards.
func onCopyStream(driver *cuda.Driver, job Job, f func(*copyStream) error) error {
	return driver.OnStream(job.Context, func(stream cuda.Stream) error {
		c := &copyStream{driver: driver, job: job, stream: stream}
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
		job.Report(c.issued)
		return nil
	})
}

// toHost copies device memory to host memory.
func (c *copyStream) toHost(copies ...spanCopy) error {
	return c.save(c.driver.MemcpyDtoHAsync, "device memory to the host", copies)
}

// toPeer copies device memory to another device's.
func (c *copyStream) toPeer(copies ...spanCopy) error {
	return c.save(c.driver.MemcpyDtoDAsync, "device memory to another device", copies)
}

// fromHost copies back what toHost has copied.
func (c *copyStream) fromHost(j spanCopy) error {
	return c.copy(c.driver.MemcpyHtoDAsync, "host memory to the device", j.Device, j.Saved, j.Size)
}

// fromPeer copies back what toPeer has copied.
func (c *copyStream) fromPeer(j spanCopy) error {
	return c.copy(c.driver.MemcpyDtoDAsync, "device memory back from another device", j.Device, j.Saved, j.Size)
}

// issuer is a function of the driver for one kind of copies.
type issuer func(to, from uintptr, size uint64, stream cuda.Stream) error

func (c *copyStream) save(issue issuer, what string, copies []spanCopy) error {
	for _, j := range copies {
		if err := c.copy(issue, what, j.Saved, j.Device, j.Size); err != nil {
			return err
		}
	}
	return nil
}

func (c *copyStream) copy(issue issuer, what string, to, from uintptr, size uint64) error {
	if err := issue(to, from, size, c.stream); err != nil {
		return fmt.Errorf("copying %s: %w", what, err)
	}
	c.mark(size)
	return nil
}

// mark notes bytes as issued. Where the driver gives no event, they count with the next one.
func (c *copyStream) mark(bytes uint64) {
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
func (c *copyStream) reached() {
	c.job.Report(c.marks[0].bytes)
	c.driver.DropEvent(c.marks[0].event)
	c.marks = c.marks[1:]
}

func (c *copyStream) drop() {
	for _, m := range c.marks {
		c.driver.DropEvent(m.event)
	}
}
