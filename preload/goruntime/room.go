package goruntime

// #include "goruntime.h"
import "C"

import (
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"tms/vmm/cuda"
)

// The Go runtime ends the process when it finds no thread or no memory. So an allocation that the limits of the
// process leave no room for is refused beforehand (docs/design/limits.md).

// devices has a bit for each device whose threads exist.
var devices atomic.Uint64

// Ready makes the threads that work for a device, and reserves room for the bookkeeping of one more allocation. Errors:
// cuda.OperatingSystem, wrapped.
func Ready(device int) error {
	bit := uint64(1) << (device & 63)
	if known := devices.Load(); known&bit == 0 {
		if !C.threads_reserve(C.int(bits.OnesCount64(known|bit)), 0) {
			return fmt.Errorf("device %d needs %d threads more, which the process cannot make; raise ulimit -u or the "+
				"pids limit, ulimit -v, ulimit -d, ulimit -l under mlockall, or vm.max_map_count%.0w", device,
				C.THREADS_PER_DEVICE, cuda.OperatingSystem)
		}
		devices.Or(bit)
	}
	return Room()
}

// bounded is the state while limits keep the heap from growing.
var bounded struct {
	sync.Mutex
	now                 atomic.Bool
	inUse               uint64
	measured, collected time.Time
}

// How often room.go measures the heap, which stops the world, and collects garbage in a full one.
const (
	measureEvery = time.Millisecond
	collectEvery = 100 * time.Millisecond
)

// Room returns an error if more than a quarter of the heap is in use: the rest is for what a pause or resume needs, and
// for tables that double. Errors: cuda.OperatingSystem, wrapped.
func Room() error {
	if !short() && !bounded.now.Load() {
		return nil
	}
	bounded.Lock()
	defer bounded.Unlock()
	bound := bytesAtMost()
	for before := uint64(0); short() && bound > before; bound = bytesAtMost() {
		before = bound
		C.memory_extend() // others may have used what this thread found when it came in
	}
	if !short() {
		if bounded.now.Swap(false) {
			debug.SetMemoryLimit(math.MaxInt64)
		}
		return nil
	}
	if !bounded.now.Swap(true) {
		debug.SetMemoryLimit(int64(bound / 8 * 7))
	}
	if time.Since(bounded.measured) > measureEvery {
		bounded.measured, bounded.inUse = time.Now(), held()
	}
	if bounded.inUse > bound/4 && time.Since(bounded.collected) > collectEvery {
		runtime.GC()
		bounded.collected, bounded.inUse = time.Now(), held()
	}
	if bounded.inUse > bound/4 {
		return fmt.Errorf("the library's bookkeeping is full: it has %d of %d MiB, the rest of which a pause may "+
			"need, and the limits of the process leave no more; free memory, or raise ulimit -v, ulimit -d, ulimit "+
			"-l under mlockall, or vm.max_map_count%.0w", bounded.inUse>>20, bound>>20, cuda.OperatingSystem)
	}
	return nil
}

// short reports whether the heap has less room than it should.
func short() bool { return atomic.LoadInt32((*int32)(unsafe.Pointer(&C.memory_short))) != 0 }

// bytesAtMost returns the most bytes that the heap can have now.
func bytesAtMost() uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&C.memory_bound))) }

// held returns how many bytes of the heap are in use.
func held() uint64 {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return now.HeapInuse + now.StackInuse
}
