package digest

import (
	"cmp"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
)

//go:generate ../../scripts/generate-kernels.sh

//go:embed digest.ptx
var ptx []byte

// BlockSize is the number of bytes that one Sum stands for; the last block of a span may be shorter.
const BlockSize = 2 << 20

// threads is DIGEST_THREADS.
const threads = 256

// prime is DIGEST_PRIME; the keys of words come in two parts of partBits.
const (
	prime    = 1<<61 - 1
	partBits = 29
)

// Sum is the hash of a block. Equal blocks have equal sums under the same keys.
type Sum [2]uint64

// Keys choose a hash at random.
type Keys [2]keys

// Span is a range of device memory; Size is a multiple of 16 bytes.
type Span struct {
	Address uintptr
	Size    uint64
}

// blocks returns the number of a span's sums.
func (s Span) blocks() int { return int((s.Size + BlockSize - 1) / BlockSize) }

// keys are digest_keys.
type keys struct {
	R, Q      uint64
	Low, High [8]uint32 // of k
}

// Hasher is safe for use by many threads; calls for one context are made one at a time.
type Hasher struct {
	driver *cuda.Driver
	keys   Keys

	mu      sync.Mutex
	library cuda.Library // 0 until loaded: compiled once per process
	kernel  cuda.Kernel
	loaded  map[cuda.Context]cuda.Function
	buffers []*buffer // not in use

	aside   sync.Mutex            // guards the rest, and is never held over a driver call
	asked   map[cuda.Context]bool // of LoadAside
	loading int                   // by LoadAside, in progress
	loads   sync.Cond             // one of these is over
}

// New returns a hasher with keys of its own.
func New(driver *cuda.Driver) *Hasher {
	h := &Hasher{driver: driver, keys: NewKeys(), loaded: map[cuda.Context]cuda.Function{},
		asked: map[cuda.Context]bool{}}
	h.loads.L = &h.aside
	return h
}

// NewKeys draws keys. (ChaCha8, seeded by the operating system)
func NewKeys() (drawn Keys) {
	for i := range drawn {
		k := &drawn[i]
		k.R, k.Q = rand.Uint64N(prime), rand.Uint64N(prime)
		for w := range k.Low {
			k.Low[w], k.High[w] = rand.Uint32N(1<<partBits), rand.Uint32N(1<<partBits)
		}
	}
	return drawn
}

// Load compiles the kernel and loads it into a context, unless that is done already, so that Sums need not do it.
// Errors: cuda.NotSupported before CUDA 12.0, *cuda.Error. (cuLibraryLoadData, cuKernelGetFunction)
func (h *Hasher) Load(context cuda.Context) error {
	return h.driver.OnStream(context, func(cuda.Stream) error {
		_, err := h.function(context)
		return err
	})
}

// LoadAside is Load in the background, once for a context, so that no pause waits for it. Sums meets an error again.
// LoadAside itself waits for no load.
func (h *Hasher) LoadAside(context cuda.Context) {
	h.aside.Lock()
	defer h.aside.Unlock()
	if h.asked[context] {
		return
	}
	h.asked[context] = true
	h.loading++
	go func() {
		_ = guard.Call(func() error { return h.Load(context) })
		h.aside.Lock()
		defer h.aside.Unlock()
		h.loading--
		h.loads.Broadcast()
	}()
}

// AwaitLoads waits until no LoadAside is in progress.
func (h *Hasher) AwaitLoads() {
	h.aside.Lock()
	defer h.aside.Unlock()
	for h.loading > 0 {
		h.loads.Wait()
	}
}

// function returns the kernel for the current context.
func (h *Hasher) function(context cuda.Context) (cuda.Function, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if function := h.loaded[context]; function != 0 {
		return function, nil
	}
	var err error
	if h.library == 0 {
		if h.library, err = h.driver.LibraryLoadData(ptx); err != nil {
			return 0, err
		}
	}
	if h.kernel == 0 {
		if h.kernel, err = h.driver.LibraryGetKernel(h.library, "tms_digest"); err != nil {
			return 0, err
		}
	}
	function, err := h.driver.KernelGetFunction(h.kernel)
	if err == nil {
		h.loaded[context] = function
	}
	return function, err
}

// Forget drops what was loaded into a context, before the context is reset.
func (h *Hasher) Forget(context cuda.Context) {
	h.Trim(context)
	h.mu.Lock()
	delete(h.loaded, context)
	h.mu.Unlock()
	h.aside.Lock()
	defer h.aside.Unlock()
	delete(h.asked, context)
}

// Trim unpins the memory that is ready for the next Sums: 32 bytes for each block of the largest so far.
func (h *Hasher) Trim(context cuda.Context) {
	h.mu.Lock()
	buffers := h.buffers
	h.buffers = nil
	h.mu.Unlock()
	for _, b := range buffers {
		h.driver.End(pinned, func() error { return h.driver.With(context, b.release) })
	}
}

const pinned = "memory of the content hash"

// Sums hashes every block of every span with the hasher's own keys. The device must be idle. Errors: as for Load, and
// the driver's. (cuLaunchKernel)
func (h *Hasher) Sums(context cuda.Context, spans []Span) (sums [][]Sum, err error) {
	return h.sums(context, &h.keys, spans)
}

// SumsOf hashes memory by its descriptor, through a mapping on a device that ends with the call. No process may write
// the memory during the call. (cuMemImportFromShareableHandle, cuMemMap, cuLaunchKernel)
func (h *Hasher) SumsOf(context cuda.Context, ordinal, descriptor int, bytes uint64, keys *Keys) (sums []Sum,
	err error) {
	handle, err := h.driver.MemImport(descriptor)
	if err != nil {
		return nil, err
	}
	defer h.driver.End("device memory", func() error { return h.driver.MemRelease(handle) })
	err = h.driver.Mapped([]cuda.Handle{handle}, bytes, ordinal, func(address uintptr) error {
		all, err := h.sums(context, keys, []Span{{address, bytes}})
		if err == nil {
			sums = all[0]
		}
		return err
	})
	return sums, err
}

func (h *Hasher) sums(context cuda.Context, keys *Keys, spans []Span) (sums [][]Sum, err error) {
	total := 0
	for _, span := range spans {
		total += span.blocks()
	}
	if total == 0 {
		return make([][]Sum, len(spans)), nil
	}
	err = h.driver.OnStream(context, func(stream cuda.Stream) error {
		function, err := h.function(context)
		if err != nil {
			return err
		}
		b, err := h.take(total)
		if err != nil {
			return err
		}
		blocks, results := b.blocks(total), b.sums(total)
		at := 0
		for _, span := range spans {
			for offset := uint64(0); offset < span.Size; offset += BlockSize {
				blocks[at] = block{uint64(span.Address) + offset, min(BlockSize, span.Size-offset)}
				at++
			}
		}
		blocksAt, sumsAt := b.device, b.device+uintptr(b.capacity)*unsafe.Sizeof(block{})
		err = h.driver.LaunchKernel(function, uint32(total), threads, stream,
			unsafe.Pointer(&blocksAt), unsafe.Pointer(&sumsAt), unsafe.Pointer(keys))
		if waited := h.driver.StreamSynchronize(stream); waited != nil {
			_ = h.driver.StreamSynchronize(stream) // the kernel must not read the next call's blocks
			err = cmp.Or(err, waited)
		}
		if err == nil {
			at = 0
			for _, span := range spans {
				n := span.blocks()
				sums = append(sums, append([]Sum(nil), results[at:at+n]...))
				at += n
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.buffers = append(h.buffers, b) // for the next call
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("hashing device memory: %w", err)
	}
	return sums, nil
}

// block is a digest_block.
type block struct {
	address, bytes uint64
}

// buffer is pinned host memory that the kernel reads blocks from and writes sums to: hashing must not need device
// memory, which may be short.
type buffer struct {
	driver     *cuda.Driver
	mapping    []byte
	registered bool
	device     uintptr // its address on the GPU
	capacity   int     // blocks
}

func (b *buffer) blocks(n int) []block {
	return unsafe.Slice((*block)(unsafe.Pointer(&b.mapping[0])), n)
}

func (b *buffer) sums(n int) []Sum {
	return unsafe.Slice((*Sum)(unsafe.Pointer(&b.mapping[uintptr(b.capacity)*unsafe.Sizeof(block{})])), n)
}

// take returns a buffer for at least n blocks.
func (h *Hasher) take(n int) (*buffer, error) {
	h.mu.Lock()
	var spare *buffer
	if last := len(h.buffers) - 1; last >= 0 {
		spare, h.buffers = h.buffers[last], h.buffers[:last]
	}
	h.mu.Unlock()
	if spare != nil && spare.capacity >= n {
		return spare, nil
	}
	if spare != nil {
		h.driver.End(pinned, spare.release)
	}
	const page = 4096
	perBlock := int(unsafe.Sizeof(block{}) + unsafe.Sizeof(Sum{}))
	bytes := (n*perBlock + page - 1) &^ (page - 1)
	mapping, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	_ = unix.Madvise(mapping, unix.MADV_DONTFORK) // a child has no use for it
	b := &buffer{driver: h.driver, mapping: mapping, capacity: bytes / perBlock}
	address := uintptr(unsafe.Pointer(&mapping[0]))
	if err = h.driver.MemHostRegister(address, uint64(bytes)); err == nil {
		b.registered = true
		b.device, err = h.driver.MemHostGetDevicePointer(address)
	}
	if err != nil {
		h.driver.End(pinned, b.release)
		return nil, err
	}
	return b, nil
}

// release unpins and unmaps a buffer. It can be called again after its own error or its caller's, and unmaps nothing
// twice: the addresses may belong to another allocation by then.
func (b *buffer) release() error {
	if b.mapping == nil {
		return nil
	}
	if b.registered {
		if err := b.driver.MemHostUnregister(uintptr(unsafe.Pointer(&b.mapping[0]))); err != nil {
			return err
		}
		b.registered = false
	}
	err := unix.Munmap(b.mapping)
	if err == nil {
		b.mapping = nil
	}
	return err
}
