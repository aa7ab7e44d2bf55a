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
	uuid    string // of the only device that it needs, or "" if it must wait for the end
	leaves  uint64 // bytes that stay free until then
	ends    func(all bool) (control.Reply, error)
}

// comesOn returns the device on which a process can take back what it has yielded while it comes, or "". Memory for a
// new allocation comes when all is free, and so does memory of several devices.
func (r *maker) comesOn(uuids []string, found []fleet.Process, at int) string {
	p := &found[at]
	if len(uuids) != 1 || len(p.Share.Yielded) == 0 || p.Stats.Everything || r.process.Version < control.AheadSince {
		return ""
	}
	if slices.ContainsFunc(p.Stats.Devices, func(d stats.Device) bool { return d.UUID == uuids[0] }) {
		return uuids[0]
	}
	return ""
}

// leaves returns what stays free while a process takes the place of others: no other finds less than before, or than
// after it.
func leaves(device Device, all []Process, need uint64, gone []Part) uint64 {
	after := device.Free
	for _, part := range gone {
		of := all[slices.IndexFunc(all, func(p Process) bool { return p.ID == part.ID })]
		for _, tag := range of.Tags {
			if part.Tags == nil || slices.Contains(part.Tags, tag.Name) {
				after += tag.Bytes
			}
		}
	}
	return min(device.Free, after-min(after, need))
}

// begin has the process take what comes. It is called once the last of the others has stopped.
func (c *coming) begin() {
	if c.ends == nil {
		c.ends = group.Ahead(c.process, control.SteerRequest{Op: control.Undo, Yield: true,
			Ahead: map[string]uint64{c.uuid: c.leaves}})
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
