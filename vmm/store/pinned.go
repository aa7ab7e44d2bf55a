// Package pinned makes buffers of registered (pinned) huge-page host memory, which copy engines can reach.
package store

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/vmm/cuda"
	"tms/vmm/reclaim"
)

// pinnedBuffer is one mapping of host memory, pinned and given back registration by registration. The driver refuses a
// copy that reaches from one into the next, and users copy from retained contents themselves: so a registration holds
// whole spans wherever it can.
type pinnedBuffer struct {
	Base          uintptr // of the first registration, aligned to a huge page
	Size          uint64  // of all registrations
	Registrations []registration

	driver  *cuda.Driver
	context cuda.Context
	budget  *Budget
	mapping []byte // without the registrations that were discarded
}

// registration is a part that is registered by one call.
type registration struct {
	Offset, Size uint64 // from Base; multiples of a huge page

	registered bool
	unmapped   bool
	live       atomic.Int64 // bytes of pages that contents of Private use
	untouched  atomic.Int64 // its Pieces that are still to be touched
}

// pieceSize is how much of a buffer a thread touches at a time. Measured on a host of 16 cores
// (docs/design/host-memory.md): smaller pieces cost more calls, larger ones leave threads idle at the ends.
const pieceSize = 32 << 20

const (
	hugePage  = 2 << 20
	smallPage = 4 << 10
)

// wholePages returns size rounded up to huge pages.
func wholePages(size uint64) uint64 { return (size + hugePage - 1) &^ (hugePage - 1) }

// newPinned maps memory, near the job's device, for registrations of these sizes, in bytes; nothing is touched or
// pinned yet. Errors: ErrHostMemory.
func newPinned(driver *cuda.Driver, job Job, sizes ...uint64) (*pinnedBuffer, error) {
	b := &pinnedBuffer{driver: driver, context: job.Context, budget: job.Budget,
		Registrations: make([]registration, len(sizes))}
	for i, size := range sizes {
		r := &b.Registrations[i]
		r.Offset, r.Size = b.Size, wholePages(size)
		r.untouched.Store(int64((r.Size + pieceSize - 1) / pieceSize))
		b.Size += r.Size
	}
	if err := job.Budget.Take(b.Size); err != nil {
		return nil, err
	}
	mapping, err := mmap(int(b.Size + hugePage))
	if err != nil {
		if errors.Is(err, unix.EAGAIN) { // mappings would be locked, and that is limited
			err = fmt.Errorf("%w: raise ulimit -l, since the process locks its memory (mlockall)", err)
		}
		return nil, NoHostMemory(fmt.Errorf("mapping %d bytes: %w", b.Size, err))
	}
	b.mapping = mapping
	b.Base = (uintptr(unsafe.Pointer(&mapping[0])) + hugePage - 1) &^ (hugePage - 1)
	// Advice: without huge pages it works, more slowly. A forked child has no use for the memory,
	// and copying it on write would take pinned pages from under the device.
	_ = unix.Madvise(mapping, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mapping, unix.MADV_DONTFORK)
	preferNode(b.Base, b.Size, job.Node)
	return b, nil
}

const preferred = 1 // MPOL_PREFERRED: elsewhere when the node is full

type nodeMask [16]uint64

// preferNode asks for memory that is still untouched to come from a node. (mbind(2)) It is advice: a
// sandbox may forbid it, and then the backup is merely slower on a host with several nodes.
func preferNode(base uintptr, size uint64, node int) {
	var mask nodeMask
	if node < 0 || node >= len(mask)*64 {
		return
	}
	mask[node/64] = 1 << (node % 64)
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, base, uintptr(size), preferred,
		uintptr(unsafe.Pointer(&mask)), uintptr(len(mask)*64), 0)
}

// Bytes returns size bytes of the buffer, from an offset.
func (b *pinnedBuffer) Bytes(offset, size uint64) []byte {
	offset += uint64(b.Base - uintptr(unsafe.Pointer(&b.mapping[0])))
	return b.mapping[offset : offset+size]
}

// piece is a part of a registration that one thread touches.
type piece struct {
	Registration int
	offset, size uint64 // from Base
}

// Pieces lists the parts of all registrations, in order.
func (b *pinnedBuffer) Pieces() []piece {
	var pieces []piece
	for i := range b.Registrations {
		r := &b.Registrations[i]
		for done := uint64(0); done < r.Size; done += pieceSize {
			pieces = append(pieces, piece{i, r.Offset + done, min(pieceSize, r.Size-done)})
		}
	}
	return pieces
}

// Touch makes pages exist, by writing to each, and reports whether their registration is complete with them.
// madvise(MADV_POPULATE_WRITE) was slower (docs/design/host-memory.md).
func (b *pinnedBuffer) Touch(p piece) (complete bool) {
	memory := b.Bytes(p.offset, p.size)
	for at := 0; at < len(memory); at += smallPage {
		memory[at] = 0
	}
	b.budget.Touched(p.size)
	return b.Registrations[p.Registration].untouched.Add(-1) == 0
}

// Register pins registration i, on a thread that has the context current. Errors: ErrHostMemory.
// (cuMemHostRegister)
func (b *pinnedBuffer) Register(i int) error {
	r := &b.Registrations[i]
	if err := b.driver.MemHostRegister(b.Base+uintptr(r.Offset), r.Size); err != nil {
		return NoHostMemory(err)
	}
	r.registered = true
	return nil
}

// Discard unpins and unmaps it in the background, except for the registrations that were discarded before.
// (cuMemHostUnregister)
func (b *pinnedBuffer) Discard(garbage *reclaim.Kind) {
	for i := range b.Registrations {
		b.DiscardRegistration(i, garbage)
	}
}

// DiscardRegistration is Discard of a single registration, once. Nothing may be copied from or to it any longer.
func (b *pinnedBuffer) DiscardRegistration(i int, garbage *reclaim.Kind) {
	garbage.Add(b.Registrations[i].Size, func() error {
		return b.driver.With(b.context, func() error { return b.unpin(i) })
	})
}

// gap is the pause between two unpinnings. The driver holds a lock while it unpins. If we took that again at once,
// threads that launch kernels would not get it before the last unpinning: 1500 launches after a resume of 16 GiB took
// 260 ms, and with the gap 60 to 120 (12 else).
const gap = 100 * time.Microsecond

// unpin can be called again after an error.
func (b *pinnedBuffer) unpin(i int) error {
	r := &b.Registrations[i]
	if r.registered {
		if err := b.driver.MemHostUnregister(b.Base + uintptr(r.Offset)); err != nil {
			return err
		}
		r.registered = false
		time.Sleep(gap)
	}
	if r.unmapped {
		return nil
	}
	err := munmap(b.around(i))
	if err == nil {
		r.unmapped = true
	}
	return err
}

// around returns a registration with what lies before the first, or behind the last.
func (b *pinnedBuffer) around(i int) []byte {
	first := uint64(b.Base - uintptr(unsafe.Pointer(&b.mapping[0])))
	begin, end := first+b.Registrations[i].Offset, first+b.Registrations[i].Offset+b.Registrations[i].Size
	if i == 0 {
		begin = 0
	}
	if i == len(b.Registrations)-1 {
		end = uint64(len(b.mapping))
	}
	return b.mapping[begin:end]
}

func mmap(size int) ([]byte, error) {
	if err := failpoint.Err("mmap"); err != nil {
		return nil, err
	}
	memory, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(memory), size), nil
}

func munmap(memory []byte) error {
	if err := failpoint.Err("munmap"); err != nil {
		return err
	}
	return unix.MunmapPtr(unsafe.Pointer(&memory[0]), uintptr(len(memory)))
}
