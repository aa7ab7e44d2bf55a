package main

import (
	"os"

	"tms/internal/control"
	"tms/internal/hostmemory"
	"tms/internal/keeper"
	"tms/vmm/cuda"
)

// ledger is where processes promise the host memory that they are about to take.
var ledger = &hostmemory.Ledger{Directory: func() (string, error) {
	return control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
}}

// reservedFree returns how much reserved host memory is free, on all NUMA nodes.
func reservedFree() (bytes uint64) {
	reply, _, _ := keeper.Ask(control.Request{Op: control.Take}, -1) // no keeper runs, perhaps
	for _, free := range reply.Reserved {
		bytes += free
	}
	return bytes
}

// wholeExtents returns how much reserved memory contents take.
func wholeExtents(bytes uint64) uint64 {
	return (bytes + cuda.HostExtent - 1) / cuda.HostExtent * cuda.HostExtent
}
