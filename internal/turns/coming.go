package turns

import (
	"slices"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/vmm/stats"
)

// coming is the memory that a process takes back while the last of those that make room still gives it away, as in a
// swap (docs/design/swap.md).
type coming struct {
	process *client.Conn
	device  *stats.Device // the only one that it needs, or nil if it must wait for the end
	ends    func(all bool) (control.Reply, error)
}

// comesOn returns the device on which a process can take back what it has yielded while it comes, or nil. Memory for a
// new allocation comes when all is free, and so does memory of several devices.
func (r *maker) comesOn(uuids []string, found []fleet.Process, at int) *stats.Device {
	p := &found[at]
	if len(uuids) != 1 || len(p.Share.Yielded) == 0 || p.Stats.Everything || r.process.Version < control.AheadSince {
		return nil
	}
	if on := slices.IndexFunc(p.Stats.Devices, func(d stats.Device) bool { return d.UUID == uuids[0] }); on >= 0 {
		return &p.Stats.Devices[on]
	}
	return nil
}

// begin has the process take what comes, and leave the reserve. It is called once the last of the others has stopped.
func (c *coming) begin() {
	if c.ends == nil {
		leave := min(c.device.FreeBytes, stats.Reserve(c.device.TotalBytes))
		c.ends = group.Ahead(c.process, control.SteerRequest{Op: control.Undo, Yield: true,
			Ahead: map[string]uint64{c.device.UUID: leave}})
	}
}

// end says whether all has come, and returns the process's answer. Without a begin it returns none.
func (c *coming) end(all bool) (control.Reply, error) {
	if c.ends == nil {
		return control.Reply{}, nil
	}
	ends := c.ends
	c.ends = nil
	return ends(all)
}
