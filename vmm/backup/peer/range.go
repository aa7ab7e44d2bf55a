package peer

import (
	"sync/atomic"
	"time"

	"tms/vmm/backup"
	"tms/vmm/cuda"
)

// peerRange is memory of one device, taken by one Save: chunks at consecutive addresses, so that a span may lie across
// several, while each is mapped and given back on its own.
type peerRange struct {
	device  int
	base    uintptr // 0: no addresses
	size    uint64
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
	handle   cuda.Handle // 0: released
	mapped   bool
	held     bool         // it counts in Store.held
	contents atomic.Int64 // that reach into it
}

// peerContents is a span's place in a range.
type peerContents struct {
	peer   *Store
	in     *peerRange
	offset uint64
	size   uint64
}

func (c *peerContents) Store() backup.Store { return c.peer }
func (c *peerContents) Bytes() uint64       { return c.size }
func (c *peerContents) Host() uintptr       { return 0 }

func (c *peerContents) Discard() {
	for _, chunk := range c.chunks() {
		if chunk.contents.Add(-1) == 0 {
			c.peer.discard(chunk)
		}
	}
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
	return c.in.chunks[c.offset/c.peer.chunk : (c.offset+c.size-1)/c.peer.chunk+1]
}

// attach maps the chunk for the device that copies.
func (c *peerChunk) attach(driver *cuda.Driver, source int) error {
	if err := driver.MemMap(c.address, c.size, c.handle); err != nil {
		return err
	}
	c.mapped = true
	return driver.MemSetAccess(c.address, c.size, source)
}

// release gives a chunk back, and with the last of a range the addresses. After an error it can be called again.
func (p *Store) release(c *peerChunk) error {
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
