package vmm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/mapping"
	"tms/vmm/store"
)

// A pause can give memory back part by part, while another process's resume takes what comes: docs/design/swap.md.

// part is what a pause saves at once.
type part struct {
	extents  []*extent                   // whose memory goes with the part; of the rest of a batch none
	items    map[BackupKind][]store.Item // the contents
	saving   map[BackupKind][]*segment   // of these, one by one
	reserved uint64                      // bytes of them that are to go to reserved memory
}

func (p *part) add(kind BackupKind, s *segment, item store.Item) {
	if p.items == nil {
		p.items, p.saving = map[BackupKind][]store.Item{}, map[BackupKind][]*segment{}
	}
	p.items[kind], p.saving[kind] = append(p.items[kind], item), append(p.saving[kind], s)
}

// A part ends before it has more than partBytes, or a sixteenth of the whole where that is less: the other process
// begins and ends a part later than this one. Where there is reserved host memory, parts are not smaller, because they
// take whole extents of it. partsAtOnce keeps the link busy with the next part while one is unmapped.
const (
	partOfAll   = 16
	partsAtOnce = 2
)

var partBytes uint64 = 2 * cuda.HostExtent // tests change it

// cut divides the extents of a pause InParts. What has no backup, or one that takes long, stays in the rest of the
// batch: its memory goes when all contents are saved, because the pause may still fail.
func (e *Engine) cut(b *batch, o *operation, reserved func() uint64) {
	if !o.InParts || !o.Gated || o.Toward != nil {
		return
	}
	b.of = map[*extent]*part{}
	most := uint64(0)
	for _, x := range b.extents {
		most += x.Size
	}
	if most = min(most/partOfAll, partBytes); most < partBytes && reserved() > 0 {
		most = partBytes
	}
	quick := func(s *segment) bool {
		kind := o.backupOf(s)
		return s.owner == aTransition && s.state == active && (kind == BackupHost || kind == BackupPeer)
	}
	bytes := uint64(0)
	var p pace
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range b.extents {
		p.yield(e, len(x.segments))
		if x.imported != nil || len(filter(x.segments, func(s *segment) bool { return s.state != slack && !quick(s) })) > 0 {
			continue
		}
		if bytes += x.Size; len(b.parts) == 0 || bytes > most {
			b.parts, bytes = append(b.parts, &part{}), x.Size
		}
		last := b.parts[len(b.parts)-1]
		last.extents = append(last.extents, x)
		b.of[x] = last
	}
}

// left is what a pause has given back so far.
type left struct {
	sync.Mutex
	freed  uint64     // bytes of device memory
	taken  []*segment // that had it
	failed atomic.Bool
}

// leaveInParts saves the parts of a batch one after the other, and gives the memory of each back as soon as its
// contents are saved. After an error of any batch it begins no more. One thread gives back what the others save: the
// driver's calls for that wait while it pins host memory, and the link would wait for them.
func (e *Engine) leaveInParts(b *batch, o *operation, left *left) error {
	if len(b.parts) == 0 {
		return nil
	}
	var next, saving atomic.Int64
	saved := make(chan *part, len(b.parts))
	save := func() error {
		for n := int(next.Add(1) - 1); n < len(b.parts) && !left.failed.Load(); n = int(next.Add(1) - 1) {
			if err := e.save(b, b.parts[n]); err != nil {
				return err
			}
			saved <- b.parts[n]
		}
		return nil
	}
	work := []func() error{func() error { return left.leave(b, o, saved) }}
	for range partsAtOnce {
		saving.Add(1)
		work = append(work, func() error {
			defer func() {
				if saving.Add(-1) == 0 {
					close(saved)
				}
			}()
			return save()
		})
	}
	return guard.All(work, func(do func() error) error {
		err := guard.Call(do)
		if err != nil {
			left.failed.Store(true)
		}
		return err
	})
}

// leave gives parts back that are saved, until there are no more, or something has failed.
func (l *left) leave(b *batch, o *operation, saved <-chan *part) error {
	for p := range saved {
		if l.failed.Load() {
			continue // they stay
		}
		if err := o.detach(p.extents); err != nil {
			return err
		}
		var segments []*segment
		for _, of := range p.saving {
			segments = append(segments, of...)
		}
		if err := l.release(b, o, segments, p.extents); err != nil {
			return err
		}
	}
	return nil
}

// stays reports whether an extent has not been given back in a part.
func (b *batch) stays(x *extent) bool { return !b.given[x] }

// detach unmaps extents, or none. Those that the driver does not map again keep their memory, and their segments are
// paused, so nothing is lost.
func (o *operation) detach(extents []*extent) error {
	var undo []*extent
	for _, x := range extents {
		wasMapped := x.Step >= mapping.Mapped
		err := x.Detach()
		if err == nil && wasMapped {
			undo = append(undo, x)
		}
		if err == nil {
			continue
		}
		for _, x := range undo {
			if x.Attach() == nil {
				continue
			}
			for _, s := range x.segments {
				if s.outcome.state = paused; s.state == active && o.backupOf(s) == BackupNone {
					s.pauseHeld()
				}
			}
		}
		return err
	}
	return nil
}

// release gives the memory of extents back that are unmapped. Their segments are paused, even if the driver refuses to
// release an extent.
func (l *left) release(b *batch, o *operation, segments []*segment, extents []*extent) (err error) {
	l.Lock()
	defer l.Unlock()
	if b.given == nil {
		b.given = map[*extent]bool{}
	}
	for _, s := range segments {
		if s.outcome.state = paused; s.state == paused {
			s.outcome.held = false
			continue
		}
		l.taken = append(l.taken, s)
		if o.discards(s) {
			s.outcome.saved = saved{}
		}
		if s.contents != nil && s.outcome.contents != s.contents {
			o.discarded.Add(s.contents, s.prompt)
			s.contents.Discard()
		}
	}
	for _, x := range extents {
		b.given[x] = true
		if failed := x.Release(); failed == nil {
			l.freed += x.Size
			b.moved += x.Size
		} else if err == nil {
			err = fmt.Errorf("paused, but memory is still held; pause again to release it: %w", failed)
		}
	}
	return err
}

// Coming says that memory which a resume lacks is on its way, because another process gives it back. Until all of it
// has come, the resume keeps the memory that it has taken, waits for more, and does not end. It keeps its contents
// until then, so it can give the memory back at once.
type Coming struct {
	All   <-chan struct{}   // closed once all of it has come, or the rest will not
	Leave map[string]uint64 // by the UUID of a device, the bytes that the resume leaves free until then
}

func (c *Coming) has() bool {
	select {
	case <-c.All:
		return true
	default:
		return false
	}
}

// errNotComing says that a resume was withdrawn while the memory for it was on its way.
var errNotComing = cuda.Refuse(cuda.NotReady, "the memory that was to come does not come; it is still paused, with "+
	"all of its contents")

// create makes the memory of an extent, and waits for memory that is on its way; idle is called at such a wait,
// which ends with its error.
// (cuMemCreate, cuMemGetInfo)
func (b *batch) create(x *extent, o *operation, idle func() error) error {
	if o.Coming == nil || x.Step > mapping.None {
		return x.Create()
	}
	leave := o.Coming.Leave[b.device.uuid]
	for retry := (backoff.Backoff{Next: time.Millisecond / 4, Most: 2 * time.Millisecond}); ; {
		come := o.Coming.has() // before it looks
		if !come && b.room < x.Size {
			free, _ := x.Driver.FreeBytes(b.device.context)
			b.room = free - min(free, leave)
		}
		if come || b.room >= x.Size {
			err := x.Create()
			if b.room -= min(b.room, x.Size); come || !errors.Is(err, cuda.OutOfMemory) {
				return err
			}
			b.room = 0
		}
		if err := idle(); err != nil {
			return err
		}
		start := time.Now()
		select {
		case <-o.Coming.All:
		case <-time.After(retry.Next):
			retry.Next = min(2*retry.Next, retry.Most)
		case <-o.Cancel:
			if !o.Coming.has() {
				return errNotComing
			}
		}
		b.waiting += time.Since(start)
	}
}

// await waits until all memory has come that was on its way.
func (o *operation) await() error {
	if o.Coming == nil {
		return nil
	}
	start := time.Now()
	defer func() { o.awaited += time.Since(start) }()
	select {
	case <-o.Coming.All:
		return nil
	case <-o.Cancel:
		if o.Coming.has() {
			return nil
		}
		return errNotComing
	}
}
