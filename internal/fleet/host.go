package fleet

import (
	"maps"
	"math"
	"os"
	"strconv"

	"tms/internal/control"
	"tms/internal/machine/hostmemory"
	"tms/internal/sets"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// Host is host memory for contents, as several processes take it one after another.
type Host struct {
	Limit    uint64 // of what they may still take together (--host-limit)
	promised []hostmemory.Promised
	Reserved NodeBytes // free
}

// NewHost returns the host memory that these processes may take now: what others promise each other to take is not
// there for them.
func NewHost(processes []Process) *Host {
	limit, used := uint64(math.MaxUint64), uint64(0)
	for _, p := range processes {
		if p.Share == nil {
			continue
		}
		if p.Share.HostLimit > 0 {
			limit = min(limit, p.Share.HostLimit)
		}
		for _, tag := range p.Tags() {
			used += tag.HostBytes
		}
	}
	return &Host{Limit: limit - min(limit, used), promised: ledger.Promised(), Reserved: reservedFree()}
}

// Available returns how many bytes a process can still take that needs these, and math.MaxUint64 if that is unknown or
// without limit.
func (h *Host) Available(p *Process, needs NodeBytes) uint64 {
	available := hostmemory.Available(strconv.Itoa(p.Here), h.promised)
	if said := p.Stats.HostAvailableBytes; said != nil { // it may be in a container
		available = min(available, *said)
	}
	if available < math.MaxUint64 {
		available += h.Reserved.serves(needs)
	}
	return min(h.Limit, available)
}

// Take notes what contents of a process would take.
func (h *Host) Take(p *Process, needs NodeBytes) {
	if h.Limit < math.MaxUint64 {
		h.Limit -= min(h.Limit, needs.Sum())
	}
	rest := needs.Sum() - h.Reserved.serve(needs)
	h.promised = append(h.promised, hostmemory.Promised{PID: p.Here, Bytes: rest})
}

// ledger is where processes promise the host memory that they are about to take.
var ledger = &hostmemory.Ledger{Directory: func() (string, error) {
	return control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
}}

// NodeBytes is bytes of host memory by NUMA node: contents wait on the node of their device.
type NodeBytes map[int]uint64

func (b NodeBytes) Add(d stats.Device, bytes uint64) {
	if bytes > 0 {
		b[max(0, d.Node)] += bytes // as a pause takes an unknown node for the first
	}
}

func (b NodeBytes) Sum() (bytes uint64) {
	for _, on := range b {
		bytes += on
	}
	return bytes
}

// reservedFree returns how much reserved host memory is free.
func reservedFree() NodeBytes {
	reply, _, _ := sets.Ask(control.SetRequest{Op: control.Take}, -1) // no keeper runs, perhaps
	free := NodeBytes{}
	maps.Copy(free, reply.Reserved)
	return free
}

// serves returns how much of what contents need can come from reserved memory.
func (b NodeBytes) serves(needs NodeBytes) (bytes uint64) {
	for node, need := range needs {
		bytes += min(need, b[node])
	}
	return bytes
}

// serve is serves, and takes that memory.
func (b NodeBytes) serve(needs NodeBytes) (bytes uint64) {
	bytes = b.serves(needs)
	for node, need := range needs {
		b[node] -= min(b[node], wholeExtents(min(need, b[node])))
	}
	return bytes
}

// wholeExtents returns how much reserved memory contents take.
func wholeExtents(bytes uint64) uint64 {
	return (bytes + cuda.HostExtent - 1) / cuda.HostExtent * cuda.HostExtent
}
