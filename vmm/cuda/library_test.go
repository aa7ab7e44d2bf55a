package cuda

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
)

// open returns a driver of the simulator, with a context current.
func open(t *testing.T) *Driver {
	t.Helper()
	sim := cudasim.Start(t)
	driver, err := Open(sim.Path)
	require.NoError(t, err)
	device, err := driver.DeviceGet(0)
	require.NoError(t, err)
	context, err := driver.DevicePrimaryCtxRetain(device)
	require.NoError(t, err)
	require.NoError(t, driver.CtxSetCurrent(context))
	return driver
}

type lane struct {
	r, q      uint64
	low, high [8]uint32
}

func TestLaunchKernel(t *testing.T) {
	driver := open(t)
	image, err := os.ReadFile(filepath.Join("..", "digest", "digest.ptx"))
	require.NoError(t, err)
	library, err := driver.LibraryLoadData(image)
	require.NoError(t, err)
	kernel, err := driver.LibraryGetKernel(library, "tms_digest")
	require.NoError(t, err)
	function, err := driver.KernelGetFunction(kernel)
	require.NoError(t, err)
	stream, err := driver.StreamCreate()
	require.NoError(t, err)

	const size = 2 << 20
	address, err := driver.MemAddressReserve(size, 0)
	require.NoError(t, err)
	handle, err := driver.MemCreate(size, 0)
	require.NoError(t, err)
	require.NoError(t, driver.MemMap(address, size, handle))
	require.NoError(t, driver.MemSetAccess(address, size, 0))
	memory := unsafe.Slice((*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), size/8)

	// One group of the words 7: r and q have no part in it, k of 1 and 10 gives 4*7 and 4*70.
	require.NoError(t, driver.MemsetD32Async(address, 7, size/4, stream))
	require.NoError(t, driver.StreamSynchronize(stream))
	require.EqualValues(t, 7<<32|7, memory[size/8-1])
	memory[100], memory[101] = uint64(address), 16
	blocks, digests := address+800, address+1600
	keys := [2]lane{{2, 3, [8]uint32{1, 1, 1, 1}, [8]uint32{}}, {4, 5, [8]uint32{10, 10, 10, 10}, [8]uint32{}}}
	require.NoError(t, driver.LaunchKernel(function, 1, 256, stream,
		unsafe.Pointer(&blocks), unsafe.Pointer(&digests), unsafe.Pointer(&keys)))
	require.NoError(t, driver.StreamSynchronize(stream))
	require.Equal(t, []uint64{28, 280}, memory[200:202])

	require.ErrorIs(t, driver.LaunchKernel(function, 0, 256, stream, unsafe.Pointer(&blocks)), InvalidValue)
	_, err = driver.LibraryGetKernel(library, "other")
	require.Error(t, err)
	library, err = driver.LibraryLoadData(nil) // the driver looks at it later
	require.NoError(t, err)
	_, err = driver.LibraryGetKernel(library, "tms_digest")
	require.ErrorContains(t, err, "(200)")
}

func TestKernelsAreOptional(t *testing.T) {
	driver := open(t)
	for _, name := range optional {
		driver.address[name] = 0 // as Open leaves it for a driver that lacks the function
	}
	_, err := driver.LibraryLoadData([]byte(".version 8.0"))
	require.ErrorIs(t, err, NotSupported)
	require.ErrorContains(t, err, "cuLibraryLoadData")
	require.ErrorIs(t, driver.LaunchKernel(1, 1, 1, 0), NotSupported)
	require.ErrorIs(t, driver.MemsetD32Async(0, 0, 0, 0), NotSupported)
}
