package backup

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
)

// slab is one mapping of host memory, pinned piece by piece.
type slab struct {
	driver     *cuda.Driver
	context    cuda.Context
	mapping    []byte
	base       uintptr // of the usable part, aligned to a huge page
	size       uint64
	registered []bool       // by piece
	references atomic.Int64 // contents that live here
}

const (
	hugePage  = 2 << 20
	smallPage = 4 << 10
)

// newSlab maps size bytes; nothing is touched or pinned yet.
func newSlab(driver *cuda.Driver, context cuda.Context, size uint64) (*slab, error) {
	size = (size + hugePage - 1) &^ (hugePage - 1)
	if err := checkHostMemory(size); err != nil {
		return nil, err
	}
	mapping, err := unix.Mmap(-1, 0, int(size+hugePage), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("%w: mapping %d bytes: %w", ErrHostMemory, size, err)
	}
	start := uintptr(unsafe.Pointer(&mapping[0]))
	s := &slab{
		driver:     driver,
		context:    context,
		mapping:    mapping,
		base:       (start + hugePage - 1) &^ (hugePage - 1),
		size:       size,
		registered: make([]bool, (size+pieceSize-1)/pieceSize),
	}
	// Advice: without huge pages it works, more slowly. A forked child has no use for the memory,
	// and copying it on write would take pinned pages from under the device.
	_ = unix.Madvise(mapping, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mapping, unix.MADV_DONTFORK)
	return s, nil
}

func (s *slab) piece(i int) (address uintptr, size uint64) {
	offset := uint64(i) * pieceSize
	return s.base + uintptr(offset), min(pieceSize, s.size-offset)
}

// touch makes piece i's pages exist, by writing to each: pinning a page that does not exist yet costs
// several times as much, and madvise(MADV_POPULATE_WRITE) was slower than this.
func (s *slab) touch(i int) {
	address, size := s.piece(i)
	offset := uint64(address - uintptr(unsafe.Pointer(&s.mapping[0])))
	memory := s.mapping[offset : offset+size]
	for at := 0; at < len(memory); at += smallPage {
		memory[at] = 0
	}
}

// register pins piece i, on a thread that has the context current.
func (s *slab) register(i int) error {
	address, size := s.piece(i)
	if err := s.driver.MemHostRegister(address, size); err != nil {
		return fmt.Errorf("%w: %w", ErrHostMemory, err)
	}
	s.registered[i] = true
	return nil
}

// release unpins and unmaps. After an error it can be called again.
func (s *slab) release() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := s.driver.CtxPushCurrent(s.context); err != nil {
		return err
	}
	defer func() { _, _ = s.driver.CtxPopCurrent() }()
	for i := range s.registered {
		if !s.registered[i] {
			continue
		}
		address, _ := s.piece(i)
		if err := s.driver.MemHostUnregister(address); err != nil {
			return err
		}
		s.registered[i] = false
	}
	if s.mapping == nil {
		return nil
	}
	err := unix.Munmap(s.mapping)
	if err == nil {
		s.mapping = nil
	}
	return err
}
