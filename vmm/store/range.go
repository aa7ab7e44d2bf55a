package store

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
)

// peerRange is memory of one device, taken by one Save: chunks at consecutive addresses, so that a span may lie across
// several, while each is mapped and given back on its own.
type peerRange struct {
	device  int     // or Reserved
	node    int     // of reserved memory
	base    uintptr // 0: no addresses
	size    uint64
	chunk   uint64       // bytes of a chunk, at most
	chunks  []*peerChunk // all of the same size but the last
	live    int          // chunks not released; once some are discarded, only empty changes it
	placed  []placedItem
	refused bool // could not be mapped
}

type placedItem struct {
	item     int // its index
	contents *peerContents
}

// peerChunk is one handle of a range's memory.
type peerChunk struct {
	in       *peerRange
	address  uintptr
	size     uint64
	handle   cuda.Handle // 0: detached, or released
	mapped   bool
	held     bool // it counts in Peer.held
	released bool
	strange  bool         // its descriptor may not be what was taken: others must not have it
	kept     uint64       // the number of its descriptor, or 0 if it is not portable
	contents atomic.Int64 // that reach into it
}

// peerContents is a span's place in a range.
type peerContents struct {
	peer   *Peer
	in     *peerRange
	offset uint64
	size   uint64
}

func (c *peerContents) Store() Store  { return c.peer }
func (c *peerContents) Bytes() uint64 { return c.size }
func (c *peerContents) Host() uintptr { return 0 }

func (c *peerContents) Discard() {
	for _, chunk := range c.chunks() {
		if chunk.contents.Add(-1) == 0 {
			c.peer.discard(chunk)
		}
	}
}

// Portable reports whether descriptors alone keep contents in the memory of a device.
func Portable(contents Contents) bool {
	c, own := contents.(*peerContents)
	return own && c.in.device != Reserved && c.chunks()[0].kept != 0
}

// IsReserved reports whether contents are in reserved host memory.
func IsReserved(contents Contents) bool {
	c, own := contents.(*peerContents)
	return own && c.in.device == Reserved
}

func (c *peerContents) Await(until time.Time) {
	for _, chunk := range c.chunks() {
		if chunk.contents.Load() == 0 {
			c.peer.garbage.Await(until)
			return
		}
	}
}

func (c *peerContents) chunks() []*peerChunk {
	return c.in.chunks[c.offset/c.in.chunk : (c.offset+c.size-1)/c.in.chunk+1]
}

// create takes a chunk's memory, as a descriptor if it is portable.
func (p *Peer) create(c *peerChunk, portable bool) (err error) {
	descriptor := -1
	switch {
	case c.in.device == Reserved:
		if c.kept, err = p.Reserve.Take(c.in.node); err != nil && c.kept != 0 {
			p.garbage.Add(c.size, func() error { return p.Descriptors.Drop(c.kept) })
		}
		return err
	case portable:
		descriptor, err = p.driver.MemCreateFile(c.size, cuda.PinnedOn(c.in.device).AsFile())
	default:
		c.handle, err = p.driver.MemCreate(c.size, c.in.device)
		return err
	}
	if err != nil {
		return err
	}
	if c.kept, err = p.Descriptors.Keep(descriptor); err != nil {
		p.garbage.Add(c.size, func() error { return p.Descriptors.Drop(c.kept) })
	}
	_ = unix.Close(descriptor)
	return err
}

// drop gives up a chunk that only its descriptor keeps. What fails is tried again, and an extent must not be given
// twice.
func (p *Peer) drop(c *peerChunk) error {
	if c.in.device == Reserved && !c.strange {
		return p.Reserve.Give(c.in.node, c.kept)
	}
	return p.Descriptors.Drop(c.kept)
}

// attach maps the chunk for the device that copies.
func (p *Peer) attach(c *peerChunk, source int) error {
	if c.handle == 0 {
		descriptor, err := p.Descriptors.Copy(c.kept)
		if err != nil {
			return err
		}
		c.handle, err = p.driver.MemImport(descriptor)
		p.Descriptors.Close(descriptor)
		if err != nil {
			c.strange = c.strange || !errors.Is(err, cuda.OutOfMemory)
			return err
		}
	}
	if err := p.driver.MemMap(c.address, c.size, c.handle); err != nil {
		return err
	}
	c.mapped = true
	return p.driver.MemSetAccess(c.address, c.size, source)
}

// attach maps what descriptors keep, and adds it to a list.
func (c *peerContents) attach(source int, attached *[]*peerChunk) error {
	for _, chunk := range c.chunks() {
		if chunk.kept != 0 && !chunk.mapped {
			*attached = append(*attached, chunk)
			if err := c.peer.attach(chunk, source); err != nil {
				return err
			}
		}
	}
	return nil
}

// detach unmaps what descriptors keep. Most refusals of the driver pass, so it tries twice.
func (p *Peer) detach(chunks []*peerChunk) (first error) {
	for _, c := range chunks {
		if c.kept != 0 && p.unmap(c) != nil {
			first = cmp.Or(p.unmap(c), first)
		}
	}
	return first
}

// unmap unmaps a chunk and lets go of its handle.
func (p *Peer) unmap(c *peerChunk) error {
	if c.mapped {
		if err := p.driver.MemUnmap(c.address, c.size); err != nil {
			return err
		}
		c.mapped = false
	}
	if c.handle != 0 {
		if err := p.driver.MemRelease(c.handle); err != nil {
			return err
		}
		c.handle = 0
	}
	return nil
}

// release gives a chunk back, and with the last of a range the addresses. After an error it can be called again.
func (p *Peer) release(c *peerChunk) error {
	if err := p.unmap(c); err != nil {
		return err
	}
	if c.kept != 0 {
		if err := p.drop(c); err != nil {
			return err
		}
		c.kept = 0
	}
	if !c.released {
		c.released = true
		c.in.live--
		if c.held {
			p.hold(c.in.device, -c.size)
		}
	}
	if c.in.live > 0 || c.in.base == 0 {
		return nil
	}
	if err := p.driver.MemAddressFree(c.in.base, c.in.size); err != nil {
		return err
	}
	c.in.base = 0
	return nil
}
