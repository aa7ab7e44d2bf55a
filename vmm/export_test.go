package vmm

import (
	"runtime"
	"slices"

	"tms/vmm/cuda"
)

// PausedAt reports whether the allocation at an address is paused, or lost its memory in a free that got half way. That
// memory may still be mapped after two failures.
func (e *Engine) PausedAt(address uintptr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.around(address).segment
	return s != nil && s.state == paused
}

// Drain waits for the background work, most of which gives back device and host memory.
func (e *Engine) Drain() {
	e.mu.Lock()
	for {
		e.pollAll()
		frees := e.pendingOf(func(d *device) bool { return e.devices[d.ordinal] == d })
		e.finish(slices.DeleteFunc(frees, func(f *pendingFree) bool { return f.stage == onStream }))
		e.giveBackIdle(func(*device, *pendingFree) (uint64, bool) { return 0, true })
		if e.pending.at[due].length == 0 && len(e.pending.lines) == 0 {
			break
		}
		e.mu.Unlock() // the reaper may be asking a stream, and needs it to go on
		runtime.Gosched()
		e.mu.Lock()
	}
	for e.loading > 0 {
		e.settled.Wait()
	}
	e.mu.Unlock()
	e.driver.Reclaim.Drain()
}

// TieWaiting ties the frees that wait for the end of a capture into a loop without an end, until
// the function that it returns is called.
func (e *Engine) TieWaiting() (untie func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := e.pending.at[unwaited].first
	next := first.next
	first.next = first
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		first.next = next
	}
}

// Compactable returns how many bytes of a device's slack a compaction could give back.
func (e *Engine) Compactable(ordinal int) uint64 {
	return e.compactable(ordinal)
}

// Driver returns the engine's.
func (e *Engine) Driver() *cuda.Driver { return e.driver }

// LentNames returns how many names of freed segments the extents remember.
func (e *Engine) LentNames() (count int) {
	seen := map[*extent]bool{}
	for _, s := range e.choose(nil, func(s *segment) bool { return s.extent != nil }) {
		if !seen[s.extent] {
			seen[s.extent] = true
			count += len(s.extent.lent)
		}
	}
	return count
}

// Stride sets how many segments are walked through at once, and returns what it was.
func Stride(segments int) (before int) {
	before, stride = stride, segments
	return before
}

// WatchLock sets the function that is called when the engine's lock is taken, and when it is let go.
func WatchLock(watch func(taken bool)) { lockWatched = watch }

// Names returns how many tags, lines, pending frees and known things the engine remembers.
func (e *Engine) Names() (count int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		count += len(d.tags)
	}
	return count + len(e.names)
}

// Transitions of these tests are interrupted at every other segment.
func init() { stride = 2 }
