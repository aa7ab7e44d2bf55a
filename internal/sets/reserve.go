package sets

import (
	"cmp"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/machine/hostmemory"
	"tms/vmm/cuda"
)

// ledger is where processes promise the host memory that they are about to take.
var ledger = &hostmemory.Ledger{Directory: func() (string, error) {
	return control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
}}

// Unchanged is for Reserve, which then says only how large it is.
const Unchanged = math.MaxUint64

// Reserve makes the host memory that is reserved and free on the NUMA node of a device as large as bytes, in whole
// extents, and returns how large it is then. Errors: why it is not; *cuda.Error. (cuMemCreate)
func Reserve(bytes uint64, device int) (free uint64, err error) {
	driver, err := cuda.Open("libcuda.so.1")
	if err != nil {
		return 0, err
	}
	node, err := driver.HostNode(cuda.Device(device))
	if err != nil {
		return 0, fmt.Errorf("GPU %d: %w", device, err)
	}
	reply, _, err := Ask(control.SetRequest{Op: control.Take}, -1)
	if free = reply.Reserved[node]; bytes == Unchanged {
		return free, err
	}
	if available := hostmemory.Machine(ledger.Promised()); err == nil && bytes > free && bytes-free > available {
		err = cuda.Refuse(cuda.OperatingSystem, "it needs %s more of host memory, and %s are available",
			readable.Bytes(bytes-free), readable.Bytes(available))
	}
	var extent int
	for err == nil && free < bytes {
		if extent, err = driver.MemCreateFile(cuda.HostExtent, cuda.HostExtentOn(node)); err == nil {
			_, _, err = Ask(control.SetRequest{Op: control.Give, Node: &node}, extent)
			if err = cmp.Or(err, unix.Close(extent)); err == nil {
				free += cuda.HostExtent
			}
		}
	}
	take := control.SetRequest{Op: control.Take, Node: &node, Bytes: cuda.HostExtent}
	for err == nil && free >= bytes+cuda.HostExtent {
		if _, extent, err = Ask(take, -1); err == nil {
			free, err = free-cuda.HostExtent, unix.Close(extent)
		}
	}
	return free, err
}
