package store

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestHostMemoryPrefersTheNodeOfTheDevice(t *testing.T) {
	fresh, err := newPinned(nil, Job{Node: 0}, 2<<20)
	require.NoError(t, err)
	const ofAddress = 2 // MPOL_F_ADDR
	var mode int32
	var mask nodeMask
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&mask)), uintptr(len(mask)*64), fresh.Base, ofAddress, 0)
	runtime.KeepAlive(fresh)
	if errno != 0 {
		t.Skipf("get_mempolicy is not allowed here: %v", errno)
	}
	require.EqualValues(t, preferred, mode)
	require.EqualValues(t, 1, mask[0])
	require.NoError(t, munmap(fresh.mapping))
}
