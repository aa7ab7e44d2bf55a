package store

import (
	"cmp"
	"fmt"
	"sync"

	"tms/vmm/cuda"
)

// Peer keeps contents in free memory of other GPUs, or in reserved host memory, where the copy engine of the source
// device writes and reads them.
// That needs no context on the other GPU, which would cost half a GiB there for every process, and a tenth of a second.
//
// The other GPU keeps at least 256 MiB, and 2% of its memory, free.
type Peer struct {
	holder
	driver  *cuda.Driver
	private Store
	chunk   uint64     // bytes of a chunk, at most
	taking  sync.Mutex // held while memory is taken

	warn func(string)

	warned sync.Map // by reason

	Reserve Reserve // or nil

	mu   sync.Mutex
	held map[int]uint64 // bytes by device
}

// Reserved is the Target of an item for reserved host memory.
const Reserved = -2

// Reserve is host memory that processes pass on, in extents of cuda.HostExtent bytes, each with a descriptor.
type Reserve interface {
	Free(node int) (bytes uint64)             // of a NUMA node
	Take(node int) (number uint64, err error) // which Descriptors hold. After an error, drop the number unless it is 0
	Give(node int, number uint64) error       // an extent that Descriptors keeps. After an error it can be called again
}

// NewPeer returns a store of other devices' memory, and of reserved host memory unless reserve is nil. descriptors
// keeps the memory that is portable or reserved. Contents without a place there go to private; warn gets the reason in
// one line, once for every reason.
func NewPeer(driver *cuda.Driver, descriptors Descriptors, reserve Reserve, private Store, warn func(string)) *Peer {
	return &Peer{holder: holder{descriptors, driver.Reclaim.Kind("memory of another device")}, driver: driver,
		Reserve: reserve, private: private, warn: warn, chunk: chunkSize, held: map[int]uint64{}}
}

func (p *Peer) note(reason string) {
	if _, told := p.warned.LoadOrStore(reason, true); !told {
		p.warn("contents: " + reason + "; they wait in the process's own host memory instead")
	}
}

// Save is Store's Save. Where memory cannot be obtained, its contents go to the host store; a copy that fails is
// an error.
func (p *Peer) Save(job Job, items []Item) ([]Contents, error) {
	contents := make([]Contents, len(items))
	var taken []*peerRun
	var attached []*peerChunk
	err := onCopyStream(p.driver, job, func(c *copyStream) error {
		for i, item := range items {
			saved, own := item.Saved.(*peerContents)
			if !own {
				continue
			}
			contents[i] = saved
			if err := p.attachAll(saved.place(), job.Device, &attached); err != nil {
				return err
			}
			if err := c.toPeer(copies(saved, item.Span, item.Parts...)...); err != nil {
				return err
			}
		}
		taken = p.place(job, items)
		for _, r := range taken {
			if err := p.fill(c, job.Device, r, items); err != nil {
				return err
			}
		}
		return nil
	})
	for _, r := range taken {
		if !r.refused {
			attached = append(attached, r.extents...)
		}
	}
	if failed := p.detach(attached); err == nil {
		err = failed
	}
	if err == nil {
		for _, r := range taken {
			if r.refused {
				continue
			}
			for _, placed := range r.placed {
				contents[placed.item] = placed.contents
			}
		}
		err = p.saveToHost(job, items, contents)
	}
	for _, r := range taken {
		if err != nil || r.refused {
			p.discard(r.extents...)
		}
	}
	if job.Portable {
		p.garbage.Drain() // the driver would take it
	}
	if err != nil {
		return nil, err
	}
	return contents, nil
}

// discard releases chunks in the background.
func (p *Peer) discard(chunks ...*peerChunk) {
	for _, c := range chunks {
		p.garbage.Add(c.size, c.release)
	}
}

// saveToHost saves the items without contents so far, and without Saved ones here.
func (p *Peer) saveToHost(job Job, items []Item, contents []Contents) error {
	var rest []Item
	var indices []int
	for i, c := range contents {
		if c == nil {
			rest, indices = append(rest, items[i]), append(indices, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	saved, err := p.private.Save(job, rest)
	for n, c := range saved {
		contents[indices[n]] = c
	}
	return err
}

// A chunk is mapped during the copies to the chunk before it. One stream fills the link; more made no difference.
// docs/design/devices.md has the speeds of other sizes.
const chunkSize = 256 << 20

// fill maps a run chunk by chunk, and makes each chunk's copies after it.
func (p *Peer) fill(c *copyStream, source int, r *peerRun, items []Item) error {
	waiting := make([][]spanCopy, len(r.extents))
	for _, placed := range r.placed {
		span := items[placed.item].Span
		for _, j := range copies(placed.contents, span, Range{Offset: 0, Size: span.Size}) {
			waiting[j.Piece] = append(waiting[j.Piece], j)
		}
	}
	for k, chunk := range r.extents {
		if err := p.attach(chunk, source); err != nil {
			p.note(fmt.Sprintf("%s: %v", placeName(r.device), err))
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
