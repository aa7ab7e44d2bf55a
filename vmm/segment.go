package vmm

import (
	"cmp"
	"fmt"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/small"
	"tms/vmm/space"
	"tms/vmm/store"
)

// BackupKind says where a segment's contents wait while it is paused.
type BackupKind int

// The kinds of backup.
const (
	BackupNone   BackupKind = iota // nowhere: contents are lost
	BackupHost                     // in pinned host memory
	BackupDisk                     // in files
	BackupSparse                   // as BackupHost, but for blocks of zeros; of a Request
	BackupPeer                     // in the memory of another device, or of the host where that is impossible
	backupMemory                   // in files that are host memory, of a pause with ToMemory
)

// segment is whole granules of a tag, for one cudaMalloc or for the small ones that share them.
type segment struct {
	device  *device
	span    space.Span[segment] // its addresses
	address uintptr
	size    uint64 // as asked for
	tag     *tag
	index   int // in tag.segments, or in its list of slack
	policy
	state   state
	owner   owner
	extent  *extent     // its memory, or nil
	slab    *small.Slab // the small allocations in it, or nil if it is one allocation
	among   *slabs      // the tag's lists that have it as a slab with room, or nil
	shelf   int         // the list of these that has it
	place   int         // its place in that list
	backing             // user-mapped memory has no span, imported memory has nothing kept
	shared  uint64      // its name for other processes, or 0
	saved
	dead    store.Ranges // bytes that the next pause need not keep; see Live
	gated   bool         // a gated pause has paused it
	exposed bool         // another pause has: the program may use its addresses
	changed uint64       // the transition that paused or resumed it last
	counted uint64       // the look for the statistics that has counted it last
	outcome outcome      // of the transition that works on it
}

// length returns the size in bytes of its granules.
func (s *segment) length() uint64 {
	if s.isUserMapped() {
		return s.size
	}
	return uint64(s.span.Granules()) * s.device.granularity
}

func (s *segment) backupSpan() store.Span {
	return store.Span{Address: s.address, Size: s.length()}
}

// reachable returns where the segment's device reaches its contents.
func (s *segment) reachable() store.Span {
	return store.Span{Address: cmp.Or(s.outcome.aside, s.address), Size: s.length()}
}

// mapped reports whether the device may be using the segment. The caller holds the engine's lock.
func (s *segment) mapped() bool {
	return s.extent != nil && (s.extent.owner != nobody || s.extent.step >= mapped)
}

// policy says how a segment's contents are kept while it is paused.
type policy struct {
	backup      BackupKind
	incremental bool         // the next pause copies only what has changed
	sparse      bool         // a pause keeps no blocks of zeros
	target      int          // of BackupPeer: the ordinal of the device, or -1 for any
	prompt      bool         // discarded contents are waited for
	ordered     bool         // allocated in stream order: so are all that share the segment
	context     cuda.Context // of the program's own, in which it was allocated, or 0 for the primary one
}

func (r Request) policy() policy {
	p := policy{r.Backup, r.Incremental && r.Backup == BackupHost, r.Backup == BackupSparse, r.Target, r.Prompt,
		r.Ordered, 0}
	if p.sparse {
		p.backup = BackupHost
	}
	return p
}

// saved is where a segment's contents are, or can be, saved.
type saved struct {
	contents store.Contents // nil if they are not saved
	current  bool           // contents are those of its last pause
	sums     []digest.Sum   // of that, block by block, or nil if not known
	parts    *parts         // the parts that have contents, or nil for all
	held     bool           // it is paused, and its extent alone has what it holds; not current
}

func (s *segment) discard() {
	if s.contents != nil {
		s.contents.Discard()
	}
	s.saved = saved{}
}

type outcome struct {
	state state
	saved
	lost  bool    // of an import
	aside uintptr // where a resume maps memory that its device cannot reach, or 0
}

type state int

const (
	active state = iota
	paused       // whatever its extent still holds after an error
	slack        // free, in an extent that others still use
)

// owner is the worker on a segment, or an extent, even while e.mu is free. Others wait for settled.
type owner int

const (
	nobody      owner = iota
	aTransition       // others still see the old state; outcome has the new one
	aCall             // a driver call on an extent
	aFree             // a free, made or pending: lookups no longer find the segment
)

// is reports whether a segment is in a state, and not about to be freed.
func (s *segment) is(state state) bool { return s.state == state && s.owner != aFree }

// pausable reports whether a pause has something to take from a segment. User-mapped memory stays as it is where its
// device has no access, because its contents cannot be moved then, and where others hold the memory itself. Imported
// memory has no contents to move.
func (s *segment) pausable() bool {
	return s.is(active) && (!s.isUserMapped() || s.isImported() || s.userMapped.pinned == 0 && s.accessible())
}

// accessible reports whether the segment's device can read and write the memory, so that contents can be moved.
func (s *segment) accessible() bool {
	own := cuda.Location{Kind: cuda.LocationDevice, ID: int32(s.device.ordinal)}
	return !s.isUserMapped() ||
		slices.Contains(s.userMapped.access, cuda.AccessDesc{Location: own, Flags: cuda.AccessReadWrite})
}

// lost returns the error for imported memory that will not come back.
func (s *segment) lost() error {
	if !s.isImported() || !s.imported.lost {
		return nil
	}
	return fmt.Errorf("the memory at %#x was %v's and is lost; close it (%s): %w", s.address,
		s.imported.share, s.closedBy(), ErrShareGone)
}

// newSegment finds addresses for a segment of a tag. With inSlab, small allocations are to share the segment. The
// caller holds e.mu.
func (e *Engine) newSegment(d *device, t *tag, granules uint32, inSlab bool, room *space.Room) (*segment, error) {
	span, err := t.ranges.Allocate(granules, inSlab, room)
	if err != nil {
		d.retire(t)
		return nil, err
	}
	return &segment{device: d, tag: t, span: span, address: span.Address()}, nil
}
