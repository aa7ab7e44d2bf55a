package peer

import (
	"cmp"
	"fmt"

	"tms/vmm/backup"
	"tms/vmm/backup/internal/copying"
)

// A chunk is mapped during the copies to the chunk before it. One stream fills the link; more made no difference.
// docs/design/devices.md has the speeds of other sizes.
const chunkSize = 256 << 20

// fill maps a range chunk by chunk, and makes each chunk's copies after it.
func (p *Store) fill(c *copying.Stream, source int, r *peerRange, items []backup.Item) error {
	waiting := make([][]copying.Copy, len(r.chunks))
	for _, placed := range r.placed {
		span := items[placed.item].Span
		for _, j := range placed.contents.copies(span, backup.Range{Offset: 0, Size: span.Size}) {
			waiting[j.Piece] = append(waiting[j.Piece], j)
		}
	}
	for k, chunk := range r.chunks {
		if err := p.attach(chunk, source); err != nil {
			p.note(fmt.Sprintf("%s: %v", named(r.device), err))
			r.refused = true
			return nil
		}
		if err := c.ToPeer(waiting[k]...); err != nil {
			return err
		}
	}
	return nil
}

// Load is backup.Store's Load.
func (p *Store) Load(job backup.Job) backup.Loader {
	return &loader{Loader: copying.NewLoader(p.driver, job, (*peerContents).copies, (*copying.Stream).FromPeer),
		peer: p, source: job.Device}
}

// Give copies contents into the host memory of targets; each has the right size.
func (p *Store) Give(job backup.Job, contents, targets []backup.Contents) error {
	l := p.Load(job)
	for i, c := range contents {
		l.Add(backup.Span{Address: targets[i].Host(), Size: c.Bytes()}, c)
	}
	return l.Wait()
}

// loader is a Loader that maps contents until it is done.
type loader struct {
	backup.Loader
	peer     *Store
	source   int
	attached []*peerChunk
	err      error
}

func (l *loader) Add(span backup.Span, contents backup.Contents) {
	if l.err == nil {
		l.err = contents.(*peerContents).attach(l.source, &l.attached)
	}
	if l.err == nil {
		l.Loader.Add(span, contents)
	}
}

// Wait leaves what the driver refuses to unmap to the end of the contents.
func (l *loader) Wait() error {
	err := l.Loader.Wait()
	_ = l.peer.detach(l.attached)
	return cmp.Or(l.err, err)
}

// copies lists the copies between parts of a span and its place, each to or from one chunk.
func (c *peerContents) copies(span backup.Span, parts ...backup.Range) []copying.Copy {
	return copying.Cut(span, c.in.base+uintptr(c.offset), c.offset, c.in.chunk, parts)
}
