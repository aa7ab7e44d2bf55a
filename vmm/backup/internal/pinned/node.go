package pinned

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const preferred = 1 // MPOL_PREFERRED: elsewhere when the node is full

type nodeMask [16]uint64

// preferNode asks for memory that is still untouched to come from a node. (mbind(2)) It is advice: a
// sandbox may forbid it, and then the backup is merely slower on a host with several nodes.
func preferNode(base uintptr, size uint64, node int) {
	var mask nodeMask
	if node < 0 || node >= len(mask)*64 {
		return
	}
	mask[node/64] = 1 << (node % 64)
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, base, uintptr(size), preferred,
		uintptr(unsafe.Pointer(&mask)), uintptr(len(mask)*64), 0)
}
