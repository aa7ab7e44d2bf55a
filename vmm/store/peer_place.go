package store

import (
	"fmt"

	"tms/vmm/cuda"
)

// place takes memory for the items that have no Saved contents, on the devices that they ask for. Items without room
// there are left to the host store.
func (p *Peer) place(job Job, items []Item) []*peerRun {
	var taken []*peerRun
	var targets []int
	wanted := map[int][]int{}
	for i, item := range items {
		if item.Saved != nil {
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
			var r *peerRun
			if r, left, err = p.take(job, device, items, left); r != nil {
				taken = append(taken, r)
			}
			if len(left) == 0 {
				break
			}
			switch {
			case cuda.Code(err) != int(cuda.OutOfMemory):
				reasons = append(reasons, fmt.Sprintf("%s: %v", placeName(device), err))
			case device != Reserved: // where processes may take what is free at once
				reasons = append(reasons, fmt.Sprintf("%s has no room", placeName(device)))
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

func placeName(device int) string {
	if device == Reserved {
		return "reserved host memory"
	}
	return fmt.Sprintf("device %d", device)
}

// reachable lists the devices that may keep contents of source. For target -1 the next ordinal comes first, so that
// processes with a device each begin with different ones. (Asking which has the most free memory would take a context
// on each.)
func (p *Peer) reachable(source, target int) ([]int, error) {
	switch target {
	case Reserved:
		return []int{Reserved}, nil
	case source:
		return nil, fmt.Errorf("device %d is the device to free", source)
	}
	candidates := []int{target}
	if target < 0 {
		count, err := p.driver.DeviceCount()
		if err != nil {
			return nil, err
		}
		candidates = nil
		for next := 1; next < count; next++ {
			candidates = append(candidates, (source+next)%count)
		}
	}
	var devices []int
	for _, device := range candidates {
		can, err := p.driver.DeviceCanAccessPeer(cuda.Device(source), cuda.Device(device))
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", device, err)
		}
		if can {
			devices = append(devices, device)
		}
	}
	switch {
	case len(devices) > 0:
		return devices, nil
	case target >= 0:
		return nil, fmt.Errorf("device %d has no peer access to device %d", source, target)
	}
	return nil, fmt.Errorf("device %d has peer access to no other", source)
}

// take gives as many of the wanted items a place on a device as there is room for. It returns which are left, and why.
func (p *Peer) take(job Job, device int, items []Item, wanted []int) (r *peerRun, left []int,
	err error) {
	p.taking.Lock()
	defer p.taking.Unlock()
	p.garbage.Drain() // discarded memory may be what is missing
	r = &peerRun{device: device, node: max(0, job.Node), run: run[*peerChunk]{each: cuda.HostExtent}}
	granularity := r.each
	if device != Reserved {
		total, err := p.driver.DeviceTotalMem(cuda.Device(device))
		if err == nil {
			granularity, err = p.driver.MemGetAllocationGranularity(device)
		}
		if err != nil {
			return nil, wanted, err
		}
		r.each = p.chunkOn(total)
		if !job.Portable { // else the caller has seen to it
			// The reserve is held while memory is taken, so it is what stays free.
			size := (max(256<<20, total/50) + granularity - 1) / granularity * granularity
			reserve := &peerChunk{extent: extent{size: size}, peer: p, in: &peerRun{live: 1}}
			if reserve.handle, err = p.driver.MemCreate(reserve.size, device); err != nil {
				return nil, wanted, err
			}
			defer p.discard(reserve)
		}
	}
	var need, room, used uint64
	for _, i := range wanted {
		need += items[i].Size
	}
	for room < need {
		whole := (need - room + granularity - 1) / granularity * granularity
		chunk := &peerChunk{extent: extent{size: min(r.each, whole)}, peer: p, in: r, held: true}
		if err = p.create(chunk, job.Portable); err != nil {
			break
		}
		r.extents, r.live, room = append(r.extents, chunk), r.live+1, room+chunk.size
		p.hold(device, chunk.size)
	}
	for _, i := range wanted {
		size := items[i].Size
		if used+size > room {
			left = append(left, i)
			continue
		}
		contents := &peerContents{store: p, garbage: p.garbage, size: size}
		contents.at = place[*peerChunk]{&r.run, used, size}
		r.placed = append(r.placed, placedItem{i, contents})
		used += size
	}
	// Chunks that nothing fits into are given back, but not before the run has its addresses.
	all, filled := r.extents, int((used+r.each-1)/r.each)
	if r.extents = all[:filled]; filled == 0 {
		p.discard(all...)
		return nil, left, err
	}
	for _, chunk := range r.extents {
		r.size += chunk.size
	}
	base, refused := p.driver.MemAddressReserve(r.size, 0)
	if refused != nil {
		p.discard(all...)
		return nil, wanted, refused
	}
	r.base = base
	p.discard(all[filled:]...)
	for k, chunk := range r.extents {
		chunk.address = base + uintptr(k)*uintptr(r.each)
	}
	for _, placed := range r.placed {
		placed.contents.at.occupy()
	}
	return r, left, err
}

// chunkOn returns the size of chunks on a device with so much memory.
func (p *Peer) chunkOn(total uint64) uint64 { return min(p.chunk, max(total>>4, 2<<20)>>21<<21) }

// Remainder returns how much memory of a device contents may still take when only a part of those of one Save is
// discarded: a chunk at each end. Errors: of the driver.
func (p *Peer) Remainder(device int) (uint64, error) {
	total, err := p.driver.DeviceTotalMem(cuda.Device(device))
	return 2 * p.chunkOn(total), err
}

// Held returns how many bytes of a device's memory hold contents of other devices, or did a moment ago.
func (p *Peer) Held(device int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[device]
}

func (p *Peer) hold(device int, bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[device] += bytes
}
