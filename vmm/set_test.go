package vmm_test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/digest"
)

// holder keeps descriptors, by their ids, as the keeper does (pymodule/tests/test_kept.py has the keeper itself).
type holder map[uint64]vmm.Export

func (h holder) Fetch(share vmm.Share, _ uint64) (vmm.Export, error) {
	export, has := h[share.ID]
	if !has || share.PID != vmm.Keeper {
		return export, vmm.ErrShareGone
	}
	var err error
	export.Descriptor, err = unix.FcntlInt(uintptr(export.Descriptor), unix.F_DUPFD_CLOEXEC, 0)
	return export, err
}

func (holder) Return(vmm.Share, uint64) error { return nil }
func (holder) Gone(vmm.Importer) bool         { return false }

// keeping returns an engine, and a holder of one piece of memory, id 7.
func keeping(t *testing.T) (*cudasim.Sim, *cuda.Driver, *vmm.Engine, holder) {
	t.Helper()
	t.Setenv("CUDASIM_SHARED", fmt.Sprintf("kept-%d", os.Getpid())) // else memory does not outlive its maker
	sim, driver, e := shareable(t)
	e.CheckInvariants(true)
	descriptor, bytes, err := e.Shared().MakeForSet(0, 3)
	require.NoError(t, err)
	require.EqualValues(t, shareSize, bytes)
	h := holder{7: {Descriptor: descriptor, Extent: bytes, Size: bytes, Device: "GPU"}}
	vmm.HostOf(e).SetProcesses(h)
	t.Cleanup(func() {
		for _, export := range h {
			_ = unix.Close(export.Descriptor)
		}
	})
	return sim, driver, e, h
}

func TestKeptMemory(t *testing.T) {
	_, driver, e, h := keeping(t)
	device, err := driver.DeviceGet(0)
	require.NoError(t, err)
	context, err := driver.DevicePrimaryCtxRetain(device)
	require.NoError(t, err)
	defer func() { require.NoError(t, driver.DevicePrimaryCtxRelease(device)) }()
	write := func(address uintptr) error {
		return driver.OnStream(context, func(stream cuda.Stream) error {
			return driver.MemsetD32Async(address, 5, 1, stream)
		})
	}
	address, err := e.Shared().Attach(0, 7, "weights", false)
	require.NoError(t, err)
	require.NoError(t, write(address))
	require.NoError(t, e.Shared().Protect(address))
	for range 2 {
		require.ErrorIs(t, write(address), cuda.InvalidValue)
		freed, err := e.Pause(vmm.Options{Tags: []string{"weights"}})
		require.NoError(t, err)
		require.Zero(t, freed, "the holder has it")
		_, err = e.Resume(vmm.Options{})
		require.NoError(t, err)
	}
	_, err = e.Shared().Export(7, vmm.Importer{})
	require.ErrorIs(t, err, vmm.ErrShareGone)
	_, _, _, err = e.Shared().Name(address)
	require.ErrorContains(t, err, "belongs to the keeper")
	handle, err := driver.MemImport(h[7].Descriptor)
	require.NoError(t, err)
	_, err = driver.MemExport(handle)
	require.ErrorIs(t, err, cuda.InvalidValue, "as on an H100")
	require.NoError(t, driver.MemRelease(handle))

	// A pause that waits for importers does not wait for the holder.
	_, err = e.Pause(vmm.Options{})
	require.NoError(t, err)
	require.NoError(t, e.Shared().Close(address, false))
}

func TestKeptMemoryThatIsLost(t *testing.T) {
	_, _, e, h := keeping(t)
	address, err := e.Shared().Attach(0, 7, "weights", true)
	require.NoError(t, err)
	_, err = e.Pause(vmm.Options{})
	require.NoError(t, err)
	export := h[7]
	delete(h, 7)
	_, err = e.Resume(vmm.Options{})
	require.ErrorIs(t, err, vmm.ErrShareGone)
	require.ErrorContains(t, err, "close it (tms_kept_close)")
	_, err = e.Shared().Attach(0, 7, "weights", true)
	require.ErrorContains(t, err, "was the keeper's and is lost")
	require.NoError(t, e.Shared().Close(address, false))
	h[7] = export
	address, err = e.Shared().Attach(0, 7, "weights", true)
	require.NoError(t, err)
	require.NoError(t, e.Shared().Close(address, false))
}

// A driver call that fails leaves no memory behind, and what could be written can still be.
// asked is a holder that calls back when it is asked for memory.
type asked struct {
	holder
	callback func()
}

func (a *asked) Fetch(share vmm.Share, number uint64) (vmm.Export, error) {
	a.callback()
	return a.holder.Fetch(share, number)
}

// A resume finds an import whose memory the driver would not take back at the pause. While the resume asks for others,
// a second pause has that memory taken back, so the resume must ask for it, too.
func TestKeptMemoryIsReleasedMeanwhile(t *testing.T) {
	_, _, e, h := keeping(t)
	var all []uintptr
	for id := range uint64(3) {
		descriptor, bytes, err := e.Shared().MakeForSet(0, 3)
		require.NoError(t, err)
		h[id] = vmm.Export{Descriptor: descriptor, Extent: bytes, Size: bytes, Device: "GPU"}
		a, err := e.Shared().Attach(0, id, "t", false)
		require.NoError(t, err)
		*wordAt(a) = id
		all = append(all, a)
	}
	releases := 0
	failpoint.Set(func(call string) error {
		if call == "cuMemRelease" {
			releases++
		}
		if call == "cuMemMap" || call == "cuMemRelease" && releases == 1 {
			return cuda.Unknown
		}
		return nil
	})
	require.Error(t, pause(e, vmm.Options{})) // and it cannot map again what it has unmapped
	failpoint.Set(nil)
	e.Drain() // what still tells of returns knows the processes of before
	paused := 0
	vmm.HostOf(e).SetProcesses(&asked{h, func() {
		if paused++; paused == 1 {
			require.NoError(t, pause(e, vmm.Options{}))
		}
	}})
	require.NoError(t, resume(e, vmm.Options{}))
	require.Positive(t, paused)
	for id, a := range all {
		require.EqualValues(t, id, *wordAt(a))
		require.NoError(t, e.Shared().Close(a, false))
	}
	e.Drain()
}

// refusing is a holder that takes no notices until it is open.
type refusing struct {
	holder
	tries *atomic.Int64
	open  *atomic.Bool
}

func (r refusing) Return(vmm.Share, uint64) error {
	r.tries.Add(1)
	if r.open.Load() {
		return nil
	}
	return errors.New("the backlog is full")
}

// Notices that a stopped process does not take are tried again all together, so they take no more processor time the
// more there are, and they arrive when the process goes on.
func TestRefusedNotices(t *testing.T) {
	_, _, e, h := keeping(t)
	const count = 200
	var tries atomic.Int64
	var open atomic.Bool
	vmm.HostOf(e).SetProcesses(refusing{h, &tries, &open})
	for range count {
		a, err := e.Shared().Attach(0, 7, "t", false)
		require.NoError(t, err)
		require.NoError(t, e.Shared().Close(a, false))
	}
	require.Eventually(t, func() bool { return tries.Load() >= 2*count }, time.Minute, time.Millisecond)
	begin, before := time.Now(), tries.Load()
	require.Eventually(t, func() bool { return tries.Load() >= before+count }, time.Minute, time.Millisecond)
	require.Greater(t, time.Since(begin), 50*time.Millisecond, "one try of each")
	open.Store(true)
	require.Eventually(t, func() bool { return len(e.Records().Recorded().Waiting) == 0 }, time.Minute, time.Millisecond)
}

func TestKeptMemoryWhereTheDriverFails(t *testing.T) {
	sim, _, e, _ := keeping(t)
	handles := sim.Stat("handles")
	for _, call := range []string{"cuMemCreate", "cuMemExportToShareableHandle"} {
		sim.Fail(call, 1, 2)
		_, _, err := e.Shared().MakeForSet(0, 1)
		require.ErrorIs(t, err, cuda.OutOfMemory, call)
	}
	for _, call := range []string{"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"} {
		sim.Fail(call, 1, 999)
		_, err := e.Shared().Attach(0, 7, "weights", true)
		require.ErrorIs(t, err, cuda.Unknown, call)
	}
	require.Equal(t, handles, sim.Stat("handles"))
	address, err := e.Shared().Attach(0, 7, "weights", false)
	require.NoError(t, err)
	sim.Fail("cuMemSetAccess", 1, 999)
	require.ErrorIs(t, e.Shared().Protect(address), cuda.Unknown)
	_, err = e.Pause(vmm.Options{})
	require.NoError(t, err)
	_, err = e.Resume(vmm.Options{})
	require.NoError(t, err)
	require.NoError(t, e.Shared().Protect(address))
	require.NoError(t, e.Shared().Close(address, false))
	require.ErrorIs(t, e.Shared().Protect(address), vmm.ErrInvalidAddress)
}

// Any process with the descriptor of kept memory can hash it, and a driver call that fails leaves nothing behind.
func TestKeptMemoryIsHashed(t *testing.T) {
	sim, driver, e, h := keeping(t)
	keys := digest.NewKeys()
	bytes := h[7].Size
	sums := func(e *vmm.Engine) []digest.Sum {
		all, err := e.Shared().Sums(0, h[7].Descriptor, bytes, &keys)
		require.NoError(t, err)
		return all
	}
	second := vmm.NewOn(driver)
	defer second.Trim()
	require.Equal(t, []digest.Sum{{}}, sums(e), "of zeros")
	_, err := unix.Pwrite(h[7].Descriptor, []byte{1}, int64(bytes)-1)
	require.NoError(t, err)
	before := sums(e)
	require.NotEqual(t, []digest.Sum{{}}, before)
	address, err := e.Shared().Attach(0, 7, "weights", true)
	require.NoError(t, err)
	for range 2 {
		require.Equal(t, before, sums(e))
		require.Equal(t, before, sums(second))
		_, err = e.Pause(vmm.Options{})
		require.NoError(t, err)
	}
	_, err = e.Resume(vmm.Options{})
	require.NoError(t, err)
	handles, reserved := sim.Stat("handles"), sim.Stat("reservations")
	for _, call := range []string{"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuLaunchKernel", "cuStreamSynchronize"} {
		sim.Fail(call, 1, 999)
		_, err := e.Shared().Sums(0, h[7].Descriptor, bytes, &keys)
		require.ErrorIs(t, err, cuda.Unknown, call)
		require.Equal(t, handles, sim.Stat("handles"), call)
		require.Equal(t, reserved, sim.Stat("reservations"), call)
	}
	require.Equal(t, before, sums(e))
	other := digest.NewKeys()
	all, err := e.Shared().Sums(0, h[7].Descriptor, bytes, &other)
	require.NoError(t, err)
	require.NotEqual(t, before, all)
	require.NoError(t, e.Shared().Close(address, false))
}
