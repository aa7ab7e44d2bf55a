package backup

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"tms/internal/guard"
	"tms/vmm/cuda"
)

// Peer keeps contents in free memory of other GPUs, where the copy engine of the source device writes
// and reads them. That takes no context on the other GPU: one would cost half a GiB there, for every
// process, and a tenth of a second.
//
// At least 256 MiB, and 2% of its memory, stay free on the other GPU.
type Peer struct {
	driver *cuda.Driver
	host   Store
	chunk  uint64     // bytes of a chunk, at most
	taking sync.Mutex // held while memory is taken

	mu       sync.Mutex
	warn     func(note string)
	warned   map[string]bool
	held     map[int]uint64 // bytes by device
	garbage  []*peerChunk   // whose last contents were discarded
	emptying bool
	emptied  sync.Cond
}

// Mapping a chunk goes on beside the copies to the one before it. Measured on two H200s (NVLink, 397 GB/s
// for copies alone), a Save of 15 GiB: 64 MiB 321, 128 MiB 324, 256 MiB 328, 512 MiB 273 GB/s. One stream
// fills the link; more made no difference.
const chunkSize = 256 << 20

// reserveOf is how much memory stays free on a device of total bytes.
func reserveOf(total uint64) uint64 { return max(256<<20, total/50) }

// NewPeer returns a store of other devices' memory. What finds no place there goes to host.
func NewPeer(driver *cuda.Driver, host Store) *Peer {
	p := &Peer{driver: driver, host: host, chunk: chunkSize, warned: map[string]bool{}, held: map[int]uint64{}}
	p.emptied.L = &p.mu
	return p
}

// Warn has f told, in one line and once for every reason, why contents have gone to the host store.
func (p *Peer) Warn(f func(note string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.warn = f
}

func (p *Peer) note(reason string) {
	p.mu.Lock()
	warn := p.warn
	if warn == nil || p.warned[reason] {
		p.mu.Unlock()
		return
	}
	p.warned[reason] = true
	p.mu.Unlock()
	warn("peer backup: " + reason + "; contents wait in host memory instead")
}

// peerRange is memory of one device, taken by one Save: chunks at consecutive addresses.
type peerRange struct {
	device  int
	base    uintptr // 0: no addresses
	size    uint64
	chunks  []*peerChunk // all of the same size but the last
	live    int          // chunks that are not released; once some are discarded only empty changes it
	placed  []placedItem
	refused bool // could not be mapped
}

type placedItem struct {
	item     int // its index
	contents *peerContents
}

type peerChunk struct {
	in       *peerRange
	address  uintptr
	size     uint64
	handle   cuda.Handle // 0: released
	mapped   bool
	released bool
	held     bool         // it counts in Peer.held
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

func (c *peerContents) chunks() []*peerChunk {
	return c.in.chunks[c.offset/c.peer.chunk : (c.offset+c.size-1)/c.peer.chunk+1]
}

func (c *peerContents) Discard() {
	for _, chunk := range c.chunks() {
		if chunk.contents.Add(-1) == 0 {
			c.peer.dispose(chunk)
		}
	}
}

// peerCopy is a copy to or from one chunk.
type peerCopy struct {
	device, peer uintptr
	size         uint64
	chunk        int
}

// copies lists those between parts of a span and its place.
func (c *peerContents) copies(span Span, parts ...Range) []peerCopy {
	var copies []peerCopy
	for _, part := range parts {
		for at, end := part.Offset, part.Offset+part.Size; at < end; {
			place := c.offset + at
			size := min(end-at, c.peer.chunk-place%c.peer.chunk)
			copies = append(copies, peerCopy{
				device: span.Address + uintptr(at),
				peer:   c.in.base + uintptr(place),
				size:   size,
				chunk:  int(place / c.peer.chunk),
			})
			at += size
		}
	}
	return copies
}

func (c *copies) toPeer(copies []peerCopy) error {
	for _, j := range copies {
		if err := c.driver.MemcpyDtoDAsync(j.peer, j.device, j.size, c.stream); err != nil {
			return fmt.Errorf("copying device memory to another device: %w", err)
		}
		c.mark(j.size)
	}
	return nil
}

func (c *copies) fromPeer(j peerCopy) error {
	if err := c.driver.MemcpyDtoDAsync(j.device, j.peer, j.size, c.stream); err != nil {
		return fmt.Errorf("copying device memory back from another device: %w", err)
	}
	c.mark(j.size)
	return nil
}

// Save is Store.Save. What goes wrong in obtaining memory sends the contents it was for to the host
// store; a copy that fails is an error.
func (p *Peer) Save(job Job, items []Item) ([]Contents, error) {
	contents := make([]Contents, len(items))
	var taken []*peerRange
	err := onCopies(p.driver, job, func(c *copies) error {
		for i, item := range items {
			kept, own := item.Kept.(*peerContents)
			if !own {
				continue
			}
			contents[i] = kept
			if err := c.toPeer(kept.copies(item.Span, item.parts()...)); err != nil {
				return err
			}
		}
		taken = p.place(job, items)
		for _, r := range taken {
			if err := p.fill(c, r, items); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		for _, r := range taken {
			for _, placed := range r.placed {
				if !r.refused {
					contents[placed.item] = placed.contents
				}
			}
		}
		err = p.saveToHost(job, items, contents)
	}
	for _, r := range taken {
		if err != nil || r.refused {
			p.dispose(r.chunks...)
		}
	}
	if err != nil {
		return nil, err
	}
	return contents, nil
}

// saveToHost saves what has no contents yet, nor Kept ones here.
func (p *Peer) saveToHost(job Job, items []Item, contents []Contents) error {
	var rest []Item
	var places []int
	for i, c := range contents {
		if c == nil {
			rest, places = append(rest, items[i]), append(places, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	saved, err := p.host.Save(job, rest)
	for n, c := range saved {
		contents[places[n]] = c
	}
	return err
}

// place takes memory for the items that have no Kept contents, on the devices they ask for.
func (p *Peer) place(job Job, items []Item) []*peerRange {
	var taken []*peerRange
	var targets []int
	wanted := map[int][]int{}
	for i, item := range items {
		if item.Kept != nil {
			continue
		}
		if wanted[item.Target] == nil {
			targets = append(targets, item.Target)
		}
		wanted[item.Target] = append(wanted[item.Target], i)
	}
	for _, target := range targets {
		left := wanted[target]
		devices, err := p.reachable(job.Device, target)
		if err != nil {
			p.note(err.Error())
			continue
		}
		var reasons []string
		for _, device := range devices {
			var r *peerRange
			if r, left, err = p.take(device, items, left); r != nil {
				taken = append(taken, r)
			}
			if len(left) == 0 {
				break
			}
			if errors.Is(err, cuda.OutOfMemory) {
				reasons = append(reasons, fmt.Sprintf("device %d has no room", device))
			} else {
				reasons = append(reasons, fmt.Sprintf("device %d: %v", device, err))
			}
		}
		if len(left) > 0 {
			for _, reason := range reasons {
				p.note(reason)
			}
		}
	}
	return taken
}

// reachable lists the devices that may keep contents of source. Of any target, the next ordinal comes
// first: processes that each use a device of their own then begin with different ones. (Which has the
// most free memory could only be asked with a context on each.)
func (p *Peer) reachable(source, target int) ([]int, error) {
	if target >= 0 {
		if target == source {
			return nil, fmt.Errorf("device %d is the one whose memory is to be free", source)
		}
		can, err := p.driver.DeviceCanAccessPeer(cuda.Device(source), cuda.Device(target))
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", target, err)
		}
		if !can {
			return nil, fmt.Errorf("device %d has no peer access to device %d", source, target)
		}
		return []int{target}, nil
	}
	count, err := p.driver.DeviceCount()
	if err != nil {
		return nil, err
	}
	var devices []int
	for next := 1; next < count; next++ {
		device := (source + next) % count
		can, err := p.driver.DeviceCanAccessPeer(cuda.Device(source), cuda.Device(device))
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", device, err)
		}
		if can {
			devices = append(devices, device)
		}
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("device %d has peer access to no other", source)
	}
	return devices, nil
}

// take gives as many of the wanted items as there is room for a place on a device. It returns which are
// left, and why.
func (p *Peer) take(device int, items []Item, wanted []int) (r *peerRange, left []int, err error) {
	total, err := p.driver.DeviceTotalMem(cuda.Device(device))
	if err != nil {
		return nil, wanted, err
	}
	granularity, err := p.driver.MemGetAllocationGranularity(device)
	if err != nil {
		return nil, wanted, err
	}
	whole := func(bytes uint64) uint64 { return (bytes + granularity - 1) / granularity * granularity }
	p.taking.Lock()
	defer p.taking.Unlock()
	p.Drain() // what was discarded may be what is missing
	// The reserve is held while memory is taken, so it is what stays free.
	reserve := &peerChunk{in: &peerRange{live: 1}, size: whole(reserveOf(total))}
	if reserve.handle, err = p.driver.MemCreate(reserve.size, device); err != nil {
		return nil, wanted, err
	}
	defer p.dispose(reserve)

	r = &peerRange{device: device}
	var need, room, used uint64
	for _, i := range wanted {
		need += items[i].Size
	}
	for room < need {
		chunk := &peerChunk{in: r, size: min(p.chunk, whole(need-room))}
		if chunk.handle, err = p.driver.MemCreate(chunk.size, device); err != nil {
			break
		}
		r.chunks, r.live, room = append(r.chunks, chunk), r.live+1, room+chunk.size
		p.hold(chunk)
	}
	for _, i := range wanted {
		size := items[i].Size
		if used+size > room {
			left = append(left, i)
			continue
		}
		r.placed = append(r.placed, placedItem{i, &peerContents{peer: p, in: r, offset: used, size: size}})
		used += size
	}
	// Chunks that nothing fits into go back, but not before the range has its addresses.
	all, kept := r.chunks, int((used+p.chunk-1)/p.chunk)
	if r.chunks = all[:kept]; kept == 0 {
		p.dispose(all...)
		return nil, left, err
	}
	for _, chunk := range r.chunks {
		r.size += chunk.size
	}
	base, refused := p.driver.MemAddressReserve(r.size, 0)
	if refused != nil {
		p.dispose(all...)
		return nil, wanted, refused
	}
	r.base = base
	p.dispose(all[kept:]...)
	for k, chunk := range r.chunks {
		chunk.address = base + uintptr(k)*uintptr(p.chunk)
	}
	for _, placed := range r.placed {
		for _, chunk := range placed.contents.chunks() {
			chunk.contents.Add(1)
		}
	}
	return r, left, err
}

// fill maps a range chunk by chunk, each followed by its copies.
func (p *Peer) fill(c *copies, r *peerRange, items []Item) error {
	waiting := make([][]peerCopy, len(r.chunks))
	for _, placed := range r.placed {
		span := items[placed.item].Span
		for _, j := range placed.contents.copies(span, Range{0, span.Size}) {
			waiting[j.chunk] = append(waiting[j.chunk], j)
		}
	}
	for k, chunk := range r.chunks {
		if err := chunk.attach(p.driver, c.job.Device); err != nil {
			p.note(fmt.Sprintf("device %d: %v", r.device, err))
			r.refused = true
			return nil
		}
		if err := c.toPeer(waiting[k]); err != nil {
			return err
		}
	}
	return nil
}

// attach maps the chunk for the device that copies.
func (c *peerChunk) attach(driver *cuda.Driver, source int) error {
	if err := driver.MemMap(c.address, c.size, c.handle); err != nil {
		return err
	}
	c.mapped = true
	return driver.MemSetAccess(c.address, c.size, source)
}

// Load is Store.Load: a thread and a stream of its own.
func (p *Peer) Load(job Job) Loader {
	l := &peerLoader{copies: make(chan peerCopy, 1024), done: make(chan error, 1)}
	go func() {
		l.done <- guard.Call(func() error {
			return onCopies(p.driver, job, func(c *copies) error {
				for j := range l.copies {
					if err := c.fromPeer(j); err != nil {
						return err
					}
				}
				return nil
			})
		})
		for range l.copies { // after an error: what is added still must not block
		}
	}()
	return l
}

type peerLoader struct {
	copies chan peerCopy
	done   chan error
}

func (l *peerLoader) Add(span Span, contents Contents) {
	for _, j := range contents.(*peerContents).copies(span, Range{0, span.Size}) {
		l.copies <- j
	}
}

func (l *peerLoader) Wait() error {
	close(l.copies)
	return <-l.done
}

// release gives a chunk back, and the addresses with the last of a range. After an error it can be
// called again.
func (c *peerChunk) release(driver *cuda.Driver) error {
	if c.mapped {
		if err := driver.MemUnmap(c.address, c.size); err != nil {
			return err
		}
		c.mapped = false
	}
	if c.handle != 0 {
		if err := driver.MemRelease(c.handle); err != nil {
			return err
		}
		c.handle = 0
	}
	if !c.released {
		c.released = true
		c.in.live--
	}
	if c.in.live > 0 || c.in.base == 0 {
		return nil
	}
	if err := driver.MemAddressFree(c.in.base, c.in.size); err != nil {
		return err
	}
	c.in.base = 0
	return nil
}

// Held returns how many bytes of a device's memory hold contents of others, or did a moment ago.
func (p *Peer) Held(device int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[device]
}

func (p *Peer) hold(chunk *peerChunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	chunk.held = true
	p.held[chunk.in.device] += chunk.size
}

// dispose releases chunks in the background: 16 GiB take 10 ms.
func (p *Peer) dispose(chunks ...*peerChunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.garbage = append(p.garbage, chunks...)
	p.startEmptying()
}

func (p *Peer) startEmptying() {
	if len(p.garbage) > 0 && !p.emptying {
		p.emptying = true
		go p.empty()
	}
}

// empty releases garbage; what the driver refuses to take back is tried again at the next dispose.
func (p *Peer) empty() {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() {
		p.emptying = false
		p.emptied.Broadcast()
	}()
	var refused []*peerChunk
	for len(p.garbage) > 0 {
		chunk := p.garbage[0]
		p.garbage = p.garbage[1:]
		p.mu.Unlock()
		err := guard.Call(func() error { return chunk.release(p.driver) })
		p.mu.Lock()
		if err != nil {
			refused = append(refused, chunk)
		} else if chunk.held {
			chunk.held = false
			p.held[chunk.in.device] -= chunk.size
		}
	}
	p.garbage = refused
}

// Drain waits until discarded memory has gone back to its device.
func (p *Peer) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startEmptying()
	for p.emptying {
		p.emptied.Wait()
	}
}
