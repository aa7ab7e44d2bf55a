package store

import (
	"cmp"
	"fmt"
)

// A chunk is mapped during the copies to the chunk before it. One stream fills the link; more made no difference.
// docs/design/devices.md has the speeds of other sizes.
const chunkSize = 256 << 20

// fill maps a range chunk by chunk, and makes each chunk's copies after it.
func (p *Peer) fill(c *copyStream, source int, r *peerRange, items []Item) error {
	waiting := make([][]spanCopy, len(r.extents))
	for _, placed := range r.placed {
		span := items[placed.item].Span
		for _, j := range copies(placed.contents, span, Range{Offset: 0, Size: span.Size}) {
			waiting[j.Piece] = append(waiting[j.Piece], j)
		}
	}
	for k, chunk := range r.extents {
		if err := p.attach(chunk, source); err != nil {
			p.note(fmt.Sprintf("%s: %v", named(r.device), err))
			r.refused = true
			return nil
		}
		if err := c.toPeer(waiting[k]...); err != nil {
			return err
		}
	}
	return nil
}

// Load is Store's Load.
func (p *Peer) Load(job Job) Loader {
	return &peerLoader{Loader: newCopyLoader(p.driver, job, copies, (*copyStream).fromPeer),
		peer: p, source: job.Device}
}

// Give copies contents into the host memory of targets; each has the right size.
func (p *Peer) Give(job Job, contents, targets []Contents) error {
	l := p.Load(job)
	for i, c := range contents {
		l.Add(Span{Address: targets[i].Host(), Size: c.Bytes()}, c)
	}
	return l.Wait()
}

// peerLoader is a Loader that maps contents until it is done.
type peerLoader struct {
	Loader
	peer     *Peer
	source   int
	attached []*peerChunk
	err      error
}

func (l *peerLoader) Add(span Span, contents Contents) {
	if l.err == nil {
		l.err = l.peer.attachAll(contents.(*peerContents).place(), l.source, &l.attached)
	}
	if l.err == nil {
		l.Loader.Add(span, contents)
	}
}

// Wait leaves what the driver refuses to unmap to the end of the contents.
func (l *peerLoader) Wait() error {
	err := l.Loader.Wait()
	_ = l.peer.detach(l.attached)
	return cmp.Or(l.err, err)
}

// copies lists the copies between parts of a span and its place, each to or from one chunk.
func copies(c *peerContents, span Span, parts ...Range) []spanCopy {
	at := c.place()
	return cutCopies(span, at.first().in.base+uintptr(at.offset), at.offset, at.in.each, parts)
}
