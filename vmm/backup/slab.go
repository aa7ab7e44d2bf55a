package backup

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
)

// slab is one mapping of host memory, pinned unit by unit. The driver refuses a copy that reaches from
// one registration into the next, and users copy from retained contents themselves: so a unit holds
// whole spans wherever it can.
type slab struct {
	driver     *cuda.Driver
	context    cuda.Context
	mapping    []byte
	base       uintptr // of the first unit, aligned to a huge page
	size       uint64  // of all units
	units      []unit
	references atomic.Int64 // contents that live here
}

// unit is what is registered at once.
type unit struct {
	offset, size uint64 // from base; multiples of a huge page
	registered   bool
	untouched    atomic.Int64 // touchJobs of it still to be done
}

const (
	hugePage  = 2 << 20
	smallPage = 4 << 10
)

func wholePages(size uint64) uint64 { return (size + hugePage - 1) &^ (hugePage - 1) }

// newSlab maps memory for units of these sizes, in bytes; nothing is touched or pinned yet.
func newSlab(driver *cuda.Driver, job Job, sizes ...uint64) (*slab, error) {
	s := &slab{driver: driver, context: job.Context, units: make([]unit, len(sizes))}
	var total uint64
	for i, size := range sizes {
		u := &s.units[i]
		u.offset, u.size = total, wholePages(size)
		u.untouched.Store(int64((u.size + pieceSize - 1) / pieceSize))
		total += u.size
	}
	if err := checkHostMemory(total); err != nil {
		return nil, err
	}
	mapping, err := mmap(int(total + hugePage))
	if err != nil {
		return nil, hostMemory(fmt.Errorf("mapping %d bytes: %w", total, err))
	}
	s.mapping, s.size = mapping, total
	s.base = (uintptr(unsafe.Pointer(&mapping[0])) + hugePage - 1) &^ (hugePage - 1)
	// Advice: without huge pages it works, more slowly. A forked child has no use for the memory,
	// and copying it on write would take pinned pages from under the device.
	_ = unix.Madvise(mapping, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mapping, unix.MADV_DONTFORK)
	preferNode(s.base, s.size, job.Node)
	return s, nil
}

// touchJob is a part of a unit that one thread touches.
type touchJob struct {
	unit         int
	offset, size uint64 // from base
}

// touchJobs lists the parts of all units, in order.
func (s *slab) touchJobs() []touchJob {
	var jobs []touchJob
	for i := range s.units {
		u := &s.units[i]
		for done := uint64(0); done < u.size; done += pieceSize {
			jobs = append(jobs, touchJob{i, u.offset + done, min(pieceSize, u.size-done)})
		}
	}
	return jobs
}

// touch makes pages exist, by writing to each, and tells whether their unit is complete with them.
// Pinning pages that do not exist yet costs several times as much, and
// madvise(MADV_POPULATE_WRITE) was slower than this.
func (s *slab) touch(p touchJob) (complete bool) {
	start := uint64(s.base-uintptr(unsafe.Pointer(&s.mapping[0]))) + p.offset
	memory := s.mapping[start : start+p.size]
	for at := 0; at < len(memory); at += smallPage {
		memory[at] = 0
	}
	return s.units[p.unit].untouched.Add(-1) == 0
}

// register pins unit i, on a thread that has the context current.
func (s *slab) register(i int) error {
	u := &s.units[i]
	if err := s.driver.MemHostRegister(s.base+uintptr(u.offset), u.size); err != nil {
		return hostMemory(err)
	}
	u.registered = true
	return nil
}

// release unpins and unmaps. After an error it can be called again.
func (s *slab) release() error { return s.driver.With(s.context, s.unpin) }

func (s *slab) unpin() error {
	for i := range s.units {
		u := &s.units[i]
		if !u.registered {
			continue
		}
		if err := s.driver.MemHostUnregister(s.base + uintptr(u.offset)); err != nil {
			return err
		}
		u.registered = false
	}
	if s.mapping == nil {
		return nil
	}
	err := munmap(s.mapping)
	if err == nil {
		s.mapping = nil
	}
	return err
}
