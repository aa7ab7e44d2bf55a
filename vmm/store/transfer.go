package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
)

// Each worker has one staging buffer and one request to the disk at a time: while one waits for its device copy, the
// others keep the disk busy. Eight requests of 4 MiB kept a virtual disk (ext4) as busy as 64 of 1 MiB or eight of 32
// did, and a copy of 8 MiB from a device takes a hundredth of the time that the disk has for it. So no buffer is
// larger: each pause and resume makes them and pins them, before its first request. (scripts/bench.sh disk)
const (
	inFlight    = 8
	stagingSize = 8 << 20
)

// request is one read or write of a part of a file.
type request struct {
	open   *openFile
	offset uint64
	memory uintptr // of the device, or of the host
	size   uint64
}

// transfer copies between memory and files; one that reads is a Loader.
type transfer struct {
	disk     *Disk
	job      Job
	writes   bool // files, or it reads them
	hostOnly bool // the memory is the host's: nothing is staged, and the driver is not called

	mu       sync.Mutex
	changed  sync.Cond
	requests []request
	files    map[*diskFile]*openFile
	ended    bool // no more requests come
	err      error
	workers  int
	running  sync.WaitGroup
}

func (d *Disk) transfer(job Job, writes, hostOnly bool) *transfer {
	t := &transfer{disk: d, job: job, writes: writes, hostOnly: hostOnly, files: map[*diskFile]*openFile{}}
	t.changed.L = &t.mu
	return t
}

// Add is Loader's Add.
func (t *transfer) Add(span Span, contents Contents) {
	c := contents.(*diskContents)
	at := c.place()
	if at.in == nil {
		t.fail(fmt.Errorf("%w: the contents of %#x were discarded", ErrDisk, span.Address))
		return
	}
	t.add([]Item{{Span: span, Sparse: c.sparse, Parts: c.parts}}, []place[*diskFile]{at})
}

// add hands spans and their places to the workers, in an order that keeps all files busy. In the host's memory the
// parts of a sparse item lie one after the other.
func (t *transfer) add(items []Item, places []place[*diskFile]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var added []request
	for i, at := range places {
		item := items[i]
		parts, back := item.Parts, uint64(0)
		if !item.Sparse {
			parts = []Range{{Size: item.Size}}
		}
		packed := uint64(0)
		for _, part := range parts {
			if t.hostOnly {
				back = part.Offset - packed
				packed += part.Size
			}
			at.part(part).walk(func(file *diskFile, in Range, from uint64) {
				open := t.files[file]
				if open == nil {
					open = &openFile{file: file, fd: -1}
					t.files[file] = open
				}
				for done := uint64(0); done < in.Size; done += t.disk.chunkSize {
					added = append(added, request{
						open:   open,
						offset: in.Offset + done,
						memory: item.Address + uintptr(part.Offset+from+done-back),
						size:   min(t.disk.chunkSize, in.Size-done),
					})
					open.begin()
				}
			})
		}
	}
	slices.SortStableFunc(added, func(x, y request) int { return cmp.Compare(x.offset, y.offset) })
	t.requests = append(t.requests, added...)
	for range min(len(added), inFlight-t.workers) {
		t.workers++
		t.running.Add(1)
		go t.work()
	}
	t.changed.Broadcast()
}

// fail makes the workers stop; the first error is the transfer's.
func (t *transfer) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	t.changed.Broadcast()
}

// Wait returns when all requests are done, or after an error when no worker runs any longer.
func (t *transfer) Wait() error {
	t.mu.Lock()
	t.ended = true
	t.changed.Broadcast()
	t.mu.Unlock()
	t.running.Wait()
	for _, open := range t.files {
		open.close()
	}
	t.disk.staging.Drain()
	return t.err
}

func (t *transfer) next() (request, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.requests) == 0 && !t.ended && t.err == nil {
		t.changed.Wait()
	}
	if len(t.requests) == 0 || t.err != nil {
		return request{}, false
	}
	c := t.requests[0]
	t.requests = t.requests[1:]
	return c, true
}

// work serves requests on a thread, and a stream of its own, until there are none.
func (t *transfer) work() {
	defer t.running.Done()
	var staging *pinnedBuffer
	way := t.load
	if t.writes {
		way = t.save
	}
	move := func(stream cuda.Stream) error {
		for c, ok := t.next(); ok; c, ok = t.next() {
			if !t.hostOnly && (staging == nil || staging.Size < c.size) {
				t.disk.drop(staging)
				var err error
				if staging, err = newPinned(t.disk.driver, t.job, c.size); err != nil {
					return err
				}
				if err := staging.Register(0); err != nil {
					return err
				}
			}
			if err := way(stream, staging, c); err != nil {
				return err
			}
			c.open.done()
			t.job.Report(c.size)
		}
		return nil
	}
	var err error
	if t.hostOnly {
		err = guard.Call(func() error { return move(0) })
	} else {
		err = t.disk.driver.OnStream(t.job.Context, move)
	}
	t.disk.drop(staging) // after the stream is done with it
	if err != nil {
		t.fail(err)
	}
}

// inHost returns where the host has a part: in staging, unless its memory is the host's.
func (c request) inHost(staging *pinnedBuffer) []byte {
	if staging != nil {
		return staging.Bytes(0, c.size)
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&c.memory))), c.size)
}

func (t *transfer) save(stream cuda.Stream, staging *pinnedBuffer, c request) error {
	if !t.hostOnly {
		if err := t.disk.driver.MemcpyDtoHAsync(staging.Base, c.memory, c.size, stream); err != nil {
			return fmt.Errorf("copying device memory to the host: %w", err)
		}
	}
	// While the device copies.
	if _, err := c.open.descriptor(); err != nil {
		return err
	}
	if !t.hostOnly {
		if err := t.disk.driver.StreamSynchronize(stream); err != nil {
			return fmt.Errorf("copying device memory to the host: %w", err)
		}
	}
	err := c.open.direct().Write(c.inHost(staging), int64(c.offset))
	if err == nil && c.open.file.directory.memory {
		t.job.Budget.Touched(c.size)
	}
	if err == nil || errors.Is(err, c.open.file.directory.refusal()) {
		return err
	}
	return c.open.file.directory.failed("writing a file in", err)
}

func (t *transfer) load(stream cuda.Stream, staging *pinnedBuffer, c request) error {
	if err := c.open.direct().Read(c.inHost(staging), int64(c.offset)); err != nil {
		return c.open.file.unreadable(c.memory, err)
	}
	if t.hostOnly {
		return nil
	}
	err := t.disk.driver.MemcpyHtoDAsync(c.memory, staging.Base, c.size, stream)
	if err == nil {
		err = t.disk.driver.StreamSynchronize(stream)
	}
	if err != nil {
		return fmt.Errorf("copying host memory to the device: %w", err)
	}
	return nil
}
