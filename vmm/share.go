package vmm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"tms/internal/aid/backoff"
	"tms/vmm/cuda"
	"tms/vmm/importers"
)

// Memory that processes share: this file has what the exporting process does, import.go what the importing ones do. The
// engine lists the importers of a segment until they give it back, or end. A pause first closes the segment to new
// importers, and goes on when no process has it mapped. Importers unmap it in their own pauses, and never wait there.
//
// The driver exports and maps whole extents. A resume gives an exported segment an extent of its own. An importer that
// had mapped it with its neighbours keeps room for those, so that its addresses stay. Until then the importer can read
// and write the neighbours too, as with CUDA's own handles for the same 2 MiB; it belongs to the same user, who may
// look at this process's memory anyway.

// Name names a segment for other processes.
type Share struct {
	PID   int    // or Keeper
	Start uint64 // of the process (process.Started): another process may have its PID by now
	ID    uint64 // random
}

// String names the process.
func (s Share) String() string {
	if s.PID == Keeper {
		return "the keeper"
	}
	return fmt.Sprint("process ", s.PID)
}

// Importer is another process that has a segment open.
type Importer = importers.Importer

// Export is what an importer gets.
type Export struct {
	Descriptor int    // of the extent that the segment lies in; Host.Descriptors closes it
	Extent     uint64 // bytes of the extent
	Offset     uint64 // where in it the segment begins
	Size       uint64 // bytes of the segment
	Tag        string // whose pause takes the memory
	Device     string // its UUID, or "" if not known
}

// Processes is how the engine speaks to other processes.
type Processes interface {
	// Fetch asks for the memory, under a number that the caller chooses. Errors: ErrShareGone, ErrSharePaused; after
	// any other error, such as ErrSilent, the other process may still hold the memory for the number.
	Fetch(share Share, number uint64) (Export, error)
	// Return gives notice that the memory is no longer mapped under the number, and waits for nothing. An error means
	// that the notice could not be sent.
	Return(share Share, number uint64) error
	// Gone reports whether an importer has ended.
	Gone(importer Importer) bool
}

// sharing is what the engine knows of memory that processes share.
type sharing struct {
	// Guarded by the engine's lock.
	shares  map[uint64]*segment
	closing []*operation // the pauses in progress: no process gets memory of their tags
	imports map[importKey]*segment
	opening map[importKey]bool // by an Import in progress

	noticing   atomic.Bool  // a timer is set for the refused notices
	noticeWait atomic.Int64 // nanoseconds until the next one

	importers importers.Record // by id; of a freed segment as long as its extent is there
}

// importKey identifies an import.
type importKey struct {
	share   Share
	ordinal int
	handle  cuda.Handle // of one of several ImportHandle calls, or 0 for Import
}

// closed reports whether a pause of the tag is in progress. The caller holds the engine's lock.
func (s *sharing) closed(tag string) bool {
	closes := func(o *operation) bool { return o.Tags == nil || slices.Contains(o.Tags, tag) }
	return slices.ContainsFunc(s.closing, closes)
}

// Name names the segment of an allocation for other processes. It returns the segment's id, the offset at which the
// allocation begins in it, and the segment's size in bytes. Errors: ErrInvalidAddress, ErrNotShareable,
// cuda.NotSupported.
func (h Shared) Name(address uintptr) (id, offset, size uint64, err error) {
	e := h.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.around(address)
	s := a.segment
	switch {
	case s == nil:
		return 0, 0, 0, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
	case s.imported != nil:
		return 0, 0, 0, fmt.Errorf("the memory at %#x belongs to %v, which alone can share it%.0w", address,
			s.imported.share, cuda.NotSupported)
	case !e.shareable:
		return 0, 0, 0, ErrNotShareable
	case s.plain():
		return 0, 0, 0, s.errPlain()
	}
	return e.sharing.name(s), uint64(a.address() - s.address), s.length(), nil
}

// plain reports whether a segment cannot be given to other processes. The caller holds the engine's lock.
func (s *segment) plain() bool {
	return !s.device.shareable.Load() || s.extent != nil && s.extent.plain
}

func (s *segment) errPlain() error {
	return fmt.Errorf("device %d, or its driver, makes no memory that can be mapped in other processes; allocate it "+
		"outside regions%.0w", s.device.ordinal, cuda.NotSupported)
}

// name gives a segment its name for other processes. The caller holds the engine's lock.
func (s *sharing) name(of *segment) uint64 {
	for of.shared == 0 {
		of.shared = rand.Uint64()
	}
	s.shares[of.shared] = of
	return of.shared
}

// Export gives an importer a segment. It waits for no pause. Errors: ErrShareGone, ErrSharePaused, *cuda.Error.
// (cuMemExportToShareableHandle)
func (h Shared) Export(id uint64, to Importer) (export Export, err error) {
	e := h.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		s := e.sharing.shares[id]
		switch {
		case s == nil || s.owner == aFree:
			return export, ErrShareGone
		case s.state != active || s.owner == aTransition || e.sharing.closed(s.tag.name):
			return export, ErrSharePaused
		case s.extent.owner != nobody:
			e.settled.Wait()
			continue
		case s.extent.plain: // it was named while the extent was being made
			return export, s.errPlain()
		}
		e.sharing.importers.Add(id, to) // from now on a pause waits for it
		export = Export{Extent: s.extent.Size, Offset: uint64(s.address - s.extent.Address), Size: s.length(),
			Tag: s.tag.name, Device: s.device.uuid}
		if f := s.userMapped; f != nil { // the program may have mapped less, or nothing
			export.Extent, export.Offset, export.Size = f.size, 0, f.size
		}
		if err = e.engage([]*extent{s.extent}, func() (err error) {
			export.Descriptor, err = e.driver.MemExport(s.extent.Handle)
			return err
		}); err != nil {
			e.Shared().Returned(id, to.PID, to.Number)
		}
		return export, err
	}
}

// Returned notes that an importer no longer has a segment. It never waits.
func (h Shared) Returned(id uint64, pid int, number uint64) {
	h.engine.sharing.importers.Returned(id, pid, number)
}

// Sharers lists the living processes that have memory of this one mapped, and those whose memory this one has, mapped
// or paused, even if they have ended.
func (h Shared) Sharers() (pids []int) {
	e := h.engine
	pids = e.sharing.importers.Left(e.sharing.importers.Names(), e.process.Gone)
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, segment := range e.sharing.imports {
		if key.share.PID != Keeper && !segment.imported.lost {
			pids = append(pids, key.share.PID)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// ImportedBytes returns how many bytes of other processes' memory are mapped.
func (e *Engine) ImportedBytes() (bytes uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sharing.imports {
		if s.is(active) {
			bytes += s.imported.size
		}
	}
	return bytes
}

// awaitImporters waits until no other process has an extent mapped that a pause is to take. Errors: ErrImported.
func (e *Engine) awaitImporters(o *operation) error {
	start := time.Now()
	defer func() { o.spent.waited += time.Since(start) }()
	var ids []uint64
	e.mu.Lock()
	seen := map[*extent]bool{}
	e.visit(o.Tags, func(_ *device, s *segment) int {
		if s.imported == nil && s.pausable() && s.extent != nil && !seen[s.extent] {
			seen[s.extent] = true
			ids = append(ids, s.extent.exports...)
			for _, part := range s.extent.segments {
				if part.shared != 0 {
					ids = append(ids, part.shared)
				}
			}
		}
		return 1
	})
	e.mu.Unlock()
	for wait := (backoff.Backoff{Next: firstLook, Most: 2 * time.Millisecond}); len(ids) > 0; {
		left := e.sharing.importers.Left(ids, e.process.Gone)
		if len(left) == 0 {
			break
		}
		if !wait.SleepUnless(start.Add(o.Importers), o.Cancel) {
			var pids []string
			for _, pid := range left {
				pids = append(pids, strconv.Itoa(pid))
			}
			return fmt.Errorf("%w: process %s, after %v. Pause those too, at the same time: in the program "+
				"(tms.distributed), or by tms pause --job; nothing has changed", ErrImported, strings.Join(pids, ", "),
				o.Importers)
		}
	}
	return nil
}
