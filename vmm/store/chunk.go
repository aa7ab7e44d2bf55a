package store

import (
	"cmp"
	"errors"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
)

// peerRun is memory of one device, taken by one Save: chunks at consecutive addresses, so that a span may lie across
// several, while each is mapped and given back on its own.
type peerRun struct {
	run[*peerChunk]
	device  int     // or Reserved
	node    int     // of reserved memory
	base    uintptr // 0: no addresses
	size    uint64
	live    int // chunks not released; once some are discarded, only empty changes it
	placed  []placedItem
	refused bool // could not be mapped
}

type placedItem struct {
	item     int // its index
	contents *peerContents
}

// peerChunk is one handle of a run's memory. Only a portable one, and one of reserved memory, has a descriptor.
type peerChunk struct {
	extent
	peer     *Peer
	in       *peerRun
	address  uintptr
	handle   cuda.Handle // 0: detached, or released
	mapped   bool
	held     bool // it counts in Peer.held
	released bool
	strange  bool // its descriptor may not be what was taken: others must not have it
}

// peerContents is contents in chunks.
type peerContents = heldContents[*peerChunk]

// trim: a chunk goes as a whole.
func (c *peerChunk) trim(Range) func() error { return nil }

// Portable reports whether descriptors alone keep contents in the memory of a device.
func Portable(contents Contents) bool {
	c, own := contents.(*peerContents)
	return own && c.first().in.device != Reserved && c.first().number != 0
}

// IsReserved reports whether contents are in reserved host memory.
func IsReserved(contents Contents) bool {
	c, own := contents.(*peerContents)
	return own && c.first().in.device == Reserved
}

// create takes a chunk's memory, as a descriptor if it is portable.
func (p *Peer) create(c *peerChunk, portable bool) (err error) {
	switch {
	case c.in.device == Reserved:
		return p.takeOver(&c.extent, func() (uint64, error) { return p.Reserve.Take(c.in.node) })
	case portable:
		descriptor, err := p.driver.MemCreateFile(c.size, cuda.PinnedOn(c.in.device).AsFile())
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(descriptor) }()
		return p.keep(&c.extent, descriptor)
	default:
		c.handle, err = p.driver.MemCreate(c.size, c.in.device)
		return err
	}
}

// drop gives up a chunk that only its descriptor keeps. What fails is tried again, and an extent must not be given
// twice.
func (p *Peer) drop(c *peerChunk) error {
	if c.in.device == Reserved && !c.strange {
		return p.Reserve.Give(c.in.node, c.number)
	}
	return p.Descriptors.Drop(c.number)
}

// attach maps the chunk for the device that copies.
func (p *Peer) attach(c *peerChunk, source int) error {
	if c.handle == 0 {
		descriptor, err := p.Descriptors.Copy(c.number)
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

// attachAll maps what descriptors keep of a place, and adds it to a list.
func (p *Peer) attachAll(at place[*peerChunk], source int, attached *[]*peerChunk) (err error) {
	at.walk(func(c *peerChunk, _ Range, _ uint64) {
		if err == nil && c.number != 0 && !c.mapped {
			*attached = append(*attached, c)
			err = p.attach(c, source)
		}
	})
	return err
}

// detach unmaps what descriptors keep. Most refusals of the driver pass, so it tries twice.
func (p *Peer) detach(chunks []*peerChunk) (first error) {
	for _, c := range chunks {
		if c.number != 0 && p.unmap(c) != nil {
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

// release gives the chunk back, and with the last of a run the addresses.
func (c *peerChunk) release() error {
	p := c.peer
	if err := p.unmap(c); err != nil {
		return err
	}
	if c.number != 0 {
		if err := p.drop(c); err != nil {
			return err
		}
		c.number = 0
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
