package vmm

import (
	"slices"

	"tms/vmm/cuda"
)

// users lists the devices that are given access to a device's memory: its own, and those with peer access
// to it that the process uses. cudaMalloc's memory could be copied with any device current, and read by
// kernels once peer access is enabled; memory that is mapped needs to be told beforehand.
func (d *device) users() []int {
	if list := d.access.Load(); list != nil {
		return *list
	}
	return []int{d.ordinal}
}

// refreshUsers looks which devices the process uses.
func (d *device) refreshUsers() {
	list := []int{d.ordinal}
	for _, peer := range d.peers {
		if active, err := d.driver.DevicePrimaryCtxGetState(cuda.Device(peer)); err == nil && active {
			list = append(list, peer)
		}
	}
	d.access.Store(&list)
}

// findPeers notes the devices that could be given access.
func (d *device) findPeers() {
	count, err := d.driver.DeviceCount()
	if err != nil {
		return
	}
	for peer := range count {
		if peer == d.ordinal {
			continue
		}
		if can, err := d.driver.DeviceCanAccessPeer(cuda.Device(peer), cuda.Device(d.ordinal)); err == nil && can {
			d.peers = append(d.peers, peer)
		}
	}
}

// Grant gives devices that the process has come to use access to the segments there are. Segments made,
// or resumed, later have it anyway. Errors: *cuda.Error, of the first that failed. (cuMemSetAccess)
func (e *Engine) Grant() (err error) {
	defer e.audit(&err)
	e.transition.Lock()
	defer e.transition.Unlock()
	var first error
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		if len(d.peers) == 0 {
			continue
		}
		d.refreshUsers()
		var extents []*extent
		for _, t := range d.tags {
			for _, s := range t.segments {
				if x := s.extent; x != nil && !x.busy && x.open && x.foreign == nil && !slices.Equal(x.users, d.users()) {
					x.busy = true
					extents = append(extents, x)
				}
			}
		}
		e.mu.Unlock()
		for _, x := range extents {
			if err := x.grant(x.address); err != nil && first == nil {
				first = err
			}
		}
		e.mu.Lock()
		for _, x := range extents {
			x.busy = false
		}
		e.settled.Broadcast()
	}
	return first
}
