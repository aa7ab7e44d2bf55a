package main

import (
	"maps"
	"os"

	"tms/internal/control"
	"tms/internal/hostmemory"
	"tms/internal/sets"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// ledger is where processes promise the host memory that they are about to take.
var ledger = &hostmemory.Ledger{Directory: func() (string, error) {
	return control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
}}

// byNode is bytes of host memory by NUMA node: contents wait on the node of their device.
type byNode map[int]uint64

func (b byNode) add(d stats.Device, bytes uint64) {
	if bytes > 0 {
		b[max(0, d.Node)] += bytes // as a pause takes an unknown node for the first
	}
}

func (b byNode) sum() (bytes uint64) {
	for _, on := range b {
		bytes += on
	}
	return bytes
}

// reservedFree returns how much reserved host memory is free.
func reservedFree() byNode {
	reply, _, _ := sets.Ask(control.Request{Op: control.Take}, -1) // no keeper runs, perhaps
	free := byNode{}
	maps.Copy(free, reply.Reserved)
	return free
}

// serves returns how much of what contents need can come from reserved memory.
func (b byNode) serves(needs byNode) (bytes uint64) {
	for node, need := range needs {
		bytes += min(need, b[node])
	}
	return bytes
}

// serve is serves, and takes that memory.
func (b byNode) serve(needs byNode) (bytes uint64) {
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
