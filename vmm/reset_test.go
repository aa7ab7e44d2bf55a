package vmm_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/vmm"
	"tms/vmm/cuda"
)

// besideAReset makes a call of a function of the driver, the first by do, wait until the device was reset.
func besideAReset(t *testing.T, e *vmm.Engine, call string, do func()) {
	t.Helper()
	var once sync.Once
	end := at(call, func() error {
		once.Do(func() { e.Reset(0) })
		return nil
	})
	defer end()
	do()
}

// Memory that is being made when its device is reset can be paused like any other.
func TestMadeBesideAReset(t *testing.T) {
	const size = 8 * mib
	for name, made := range map[string]func(*testing.T, *cuda.Driver, *vmm.Engine) uintptr{
		"a segment": func(t *testing.T, _ *cuda.Driver, e *vmm.Engine) (a uintptr) {
			besideAReset(t, e, "cuMemSetAccess", func() {
				a = malloc(t, e, vmm.Request{Size: size, Tag: "t"})
			})
			return a
		},
		"a slab": func(t *testing.T, _ *cuda.Driver, e *vmm.Engine) (a uintptr) {
			besideAReset(t, e, "cuMemSetAccess", func() {
				a = malloc(t, e, vmm.Request{Size: 512, Tag: "t"})
			})
			return a
		},
		"mapped by the program": func(t *testing.T, driver *cuda.Driver, e *vmm.Engine) uintptr {
			address, err := driver.MemAddressReserve(size, 0)
			require.NoError(t, err)
			besideAReset(t, e, "cuMemCreate", func() {
				handle, err := e.UserMapped().Create(vmm.Request{Size: size, Tag: "t"}, cuda.PinnedOn(0))
				require.NoError(t, err)
				require.NoError(t, e.UserMapped().Map(address, size, 0, handle, 0))
				require.NoError(t, e.UserMapped().SetAccess(address, size, onDevice0))
				require.NoError(t, e.UserMapped().Release(handle))
			})
			return address
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, driver, e := simulated(t, 1)
			e.CheckInvariants(true)
			malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "t"})
			a := made(t, driver, e)
			*wordAt(a) = 1
			freed, err := e.Pause(vmm.Options{})
			require.NoError(t, err)
			require.Positive(t, freed)
			require.NoError(t, resume(e, vmm.Options{}))
			if name == "mapped by the program" {
				require.NoError(t, e.UserMapped().Unmap(a, size))
			} else {
				require.NoError(t, e.Free(a, false))
			}
		})
	}
}

// Slack that an allocation takes while other devices get access to it goes with a reset, too.
func TestSlackBesideAReset(t *testing.T) {
	_, _, e := simulated(t, 2)
	e.CheckInvariants(true)
	r := vmm.Request{Size: 2 * mib, Tag: "t"}
	all := mallocs(t, e, 4, r)
	cycle(t, e, vmm.Options{ExtentBytes: 64 * mib})
	frees(t, e, all[1])
	malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "t", Device: 1}) // and device 1 comes into use
	malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "other"})        // which device 0 finds out
	var reset sync.WaitGroup
	var once sync.Once
	end := at("cuMemSetAccess", func() error { // of the slack, for device 1
		once.Do(func() {
			reset.Go(func() { e.Reset(0) }) // it waits for this call
			require.Eventually(t, func() bool { return len(e.Records().Recorded().Devices) == 1 }, time.Minute, time.Microsecond)
		})
		return nil
	})
	defer end()
	a := malloc(t, e, r)
	reset.Wait()
	*wordAt(a) = 1
	require.NoError(t, pause(e, vmm.Options{}))
	require.NoError(t, e.Free(a, false))
	require.ErrorIs(t, e.Free(all[0], false), vmm.ErrInvalidAddress)
	e.Reset(1)
}

// Another process's memory that is opened beside a reset goes with it, or can be paused.
func TestOpenedBesideAReset(t *testing.T) {
	_, _, e, _ := keeping(t)
	besideAReset(t, e, "cuMemSetAccess", func() {
		_, err := e.Shared().Attach(0, 7, "t", false)
		require.ErrorContains(t, err, "the device was reset during the call; call again")
	})
	a, err := e.Shared().Attach(0, 7, "t", false)
	require.NoError(t, err)
	require.NoError(t, pause(e, vmm.Options{}))
	require.NoError(t, resume(e, vmm.Options{}))
	require.NoError(t, e.Shared().Close(a, false))
}

// The last free in a slab becomes due while a reset takes the slab: one of them ends it.
func TestSmallFreeBesideAReset(t *testing.T) {
	_, _, e := simulated(t, 1)
	e.CheckInvariants(true)
	malloc(t, e, vmm.Request{Size: 4 * mib, Tag: "t"})
	a := malloc(t, e, vmm.Request{Size: 512, Tag: "t"})
	var waits atomic.Bool // the reset, for the devices
	var reached atomic.Bool
	looked := make(chan bool, 1) // at the stream, after it has reached the free
	waits.Store(true)
	failpoint.Set(func(call string) error {
		switch call {
		case "cuEventSynchronize":
			if waits.CompareAndSwap(true, false) {
				require.NoError(t, e.FreeAfter(a, 0))
			}
		case "cuEventQuery":
			if !reached.Load() {
				return cuda.NotReady
			}
			select {
			case looked <- true:
			default:
			}
		case "cuMemUnmap":
			if !reached.Swap(true) {
				<-looked
				e.FreeDeferred() // returns when the free is made, or waits for the reset
			}
		}
		return nil
	})
	defer failpoint.Set(nil)
	e.Reset(0)
	e.Drain()
	b := malloc(t, e, vmm.Request{Size: 4 * mib, Tag: "u"})
	require.NoError(t, e.Free(b, false))
}
