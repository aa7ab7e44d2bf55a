package vmm

import "tms/vmm/backup"

// BackupKind says where a segment's contents wait while it is paused.
type BackupKind int

// The kinds of backup.
const (
	BackupNone BackupKind = iota // nowhere: contents are lost
	BackupHost                   // in pinned host memory
	BackupDisk                   // in files
)

// segment is what one cudaMalloc got.
type segment struct {
	device  *device
	arena   *arena
	span    *span
	address uintptr
	size    uint64 // as asked for
	tag     *tag
	index   int // in tag.segments
	backup  BackupKind
	state   state
	busy    bool // a pause or resume is working on it
	extent  extent
	kept
	outcome outcome // of the transition that works on it
}

// kept is where a segment's contents are, or can be, kept.
type kept struct {
	contents backup.Contents // nil: nowhere
	current  bool            // contents hold what the segment held at its last pause
}

type outcome struct {
	state state
	kept
}

type state int

const (
	active  state = iota
	paused        // whatever its extent still holds after an error
	freeing       // a free has it, or has deferred it
)

// tag is the segments of one device that are paused and resumed together.
type tag struct {
	name       string
	segments   []*segment
	lastPause  float64 // seconds
	lastResume float64
}

func (t *tag) add(s *segment) {
	s.tag, s.index = t, len(t.segments)
	t.segments = append(t.segments, s)
}

func (t *tag) remove(s *segment) {
	last := t.segments[len(t.segments)-1]
	t.segments[s.index], last.index = last, s.index
	t.segments[len(t.segments)-1] = nil
	t.segments = t.segments[:len(t.segments)-1]
}
