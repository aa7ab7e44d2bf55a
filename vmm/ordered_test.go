package vmm_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// inOrder is an engine with streams that stay busy until they are told otherwise.
type inOrder struct {
	t      *testing.T
	sim    *cudasim.Sim
	driver *cuda.Driver
	engine *vmm.Engine
	busy   atomic.Bool
	calls  sync.Map // of the driver, by name: how many
}

func newInOrder(t *testing.T) *inOrder {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	o := &inOrder{t: t}
	o.sim, o.driver, o.engine = simulated(t, 1)
	o.busy.Store(true)
	failpoint.Set(func(call string) error {
		count, _ := o.calls.LoadOrStore(call, &atomic.Int64{})
		count.(*atomic.Int64).Add(1)
		if call == "cuEventQuery" && o.busy.Load() {
			return cuda.NotReady
		}
		return nil
	})
	t.Cleanup(func() {
		o.busy.Store(false)
		o.engine.Drain()
		failpoint.Set(nil)
	})
	o.engine.CheckInvariants(true)
	require.NoError(t, o.driver.CtxSetCurrent(0))
	return o
}

func (o *inOrder) called(name string) int64 {
	count, ok := o.calls.Load(name)
	if !ok {
		return 0
	}
	return count.(*atomic.Int64).Load()
}

func (o *inOrder) stream() cuda.Stream {
	o.t.Helper()
	stream, err := o.driver.StreamCreate()
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = o.driver.StreamDestroy(stream) })
	return stream
}

func (o *inOrder) request(size uint64, stream cuda.Stream) vmm.Request {
	return vmm.Request{Size: size, Tag: "t", Ordered: true, Stream: stream}
}

func (o *inOrder) malloc(size uint64, stream cuda.Stream) uintptr {
	o.t.Helper()
	return malloc(o.t, o.engine, o.request(size, stream))
}

func (o *inOrder) free(address uintptr, stream cuda.Stream) {
	o.t.Helper()
	require.NoError(o.t, o.engine.FreeAfter(address, stream))
}

// A program that runs ahead of its stream works with what it frees there: nothing waits, and nothing is mapped.
func TestAStreamAllocatesWhatItHasFreed(t *testing.T) {
	o := newInOrder(t)
	first := malloc(t, o.engine, vmm.Request{Size: 1, Tag: "u"}) // makes a context current
	stream := o.stream()
	for _, size := range []uint64{700 * mib, 64 << 10, 100} {
		a := o.malloc(size, stream)
		made := o.called("cuMemCreate")
		for range 20 {
			o.free(a, stream)
			require.ErrorIs(t, o.engine.FreeAfter(a, stream), vmm.ErrInvalidAddress)
			base, _ := o.engine.Records().RangeOf(a)
			require.Zero(t, base, "freed")
			require.Equal(t, a, o.malloc(size, stream))
		}
		require.Equal(t, made, o.called("cuMemCreate"))
		require.Zero(t, o.called("cuMemUnmap"))
		o.free(a, stream)
	}
	require.EqualValues(t, 1, o.called("cuEventCreate")-2, "an event of the stream is recorded again")
	require.NoError(t, o.engine.Free(first, false))
}

// Another stream gets memory of its own as long as there is some. Then it waits on the device, as CUDA has it wait.
func TestAnotherStreamWaitsForWhatIsFreed(t *testing.T) {
	o := newInOrder(t)
	a := o.malloc(400*mib, 0)
	one, other := o.stream(), o.stream()
	o.free(a, one)
	b := o.malloc(400*mib, other)
	require.NotEqual(t, a, b)
	require.Zero(t, o.called("cuStreamWaitEvent"))
	require.Equal(t, a, o.malloc(400*mib, other))
	require.EqualValues(t, 1, o.called("cuStreamWaitEvent"))
	// A stream that is made after another was destroyed is no other stream.
	o.free(a, one)
	o.free(b, one)
	require.NoError(t, o.driver.StreamDestroy(one))
	o.malloc(400*mib, o.stream())
	require.EqualValues(t, 2, o.called("cuStreamWaitEvent"))
}

// Once a stream has reached a free, every stream may have the memory.
func TestIdleMemoryServesAllStreams(t *testing.T) {
	o := newInOrder(t)
	r := o.request(40*mib, 0)
	r.Keep = 1 << 40
	a := malloc(t, o.engine, r)
	o.free(a, 0)
	o.busy.Store(false)
	r.Stream = o.stream()
	require.Equal(t, a, malloc(t, o.engine, r))
	require.Zero(t, o.called("cuStreamWaitEvent"))
}

// Memory is short, and a small allocation gets a part of a large piece; the rest stays, and all of it goes back.
func TestAShortAllocationTakesAPart(t *testing.T) {
	o := newInOrder(t)
	a := o.malloc(1024*mib, 0)
	stream := o.stream()
	o.free(a, stream)
	b := o.malloc(600*mib, stream)
	require.Equal(t, a, b)
	c := o.malloc(300*mib, stream)
	small := o.malloc(1000, stream)
	require.EqualValues(t, 4, o.called("cuMemCreate"), "three of them in vain")
	for _, address := range []uintptr{b, c, small} {
		o.free(address, stream)
	}
	o.busy.Store(false)
	o.engine.Drain()
	require.Eventually(t, func() bool { return o.sim.Stat("handles") == 0 }, time.Minute, time.Millisecond,
		"another thread may be giving the last one back")
	require.Equal(t, [4]uint64{0, 1024 * mib, 0, 1024 * mib}, o.engine.Ordered().Bytes(0))
}

// Idle memory goes back after a while, down to the release threshold, and at a trim or a pause altogether.
func TestIdleMemoryGoesBack(t *testing.T) {
	o := newInOrder(t)
	o.busy.Store(false)
	left := func(handles, bytes uint64) { // the engine counts a handle until after its release
		t.Helper()
		require.Eventually(t, func() bool {
			return o.sim.Stat("handles") == handles && o.engine.Ordered().Bytes(0)[0] == bytes
		}, time.Minute, time.Millisecond)
	}
	o.free(o.malloc(8*mib, 0), 0)
	left(0, 0)
	fill := func() {
		r := o.request(8*mib, 0)
		r.Keep = 20 * mib
		all := []uintptr{malloc(t, o.engine, r), malloc(t, o.engine, r), malloc(t, o.engine, r)}
		for _, a := range all {
			o.free(a, 0)
		}
		left(2, 16*mib)
	}
	fill()
	require.Equal(t, [4]uint64{16 * mib, 24 * mib, 0, 24 * mib}, o.engine.Ordered().Bytes(0))
	held, err := o.engine.Records().Stats()
	require.NoError(t, err)
	require.Equal(t, [2]uint64{0, 16 * mib}, [2]uint64{held.Devices[0].LiveBytes, held.Devices[0].SlackBytes})
	o.engine.Ordered().Trim(0, 10*mib)
	left(1, 8*mib)
	o.engine.Ordered().ResetHigh(0, true)
	o.engine.Ordered().ResetHigh(0, false)
	require.Equal(t, [4]uint64{8 * mib, 8 * mib, 0, 0}, o.engine.Ordered().Bytes(0))
	fill()
	o.malloc(4*mib, 0)
	require.NoError(t, pause(o.engine, vmm.Options{Tags: []string{"t"}}))
	require.Zero(t, o.sim.Stat("handles"))
	require.NoError(t, resume(o.engine, vmm.Options{}))
	left(1, 4*mib)
}

// What is freed in an extent that a resume has made for several segments can be used again, and becomes slack.
func TestFreedMemoryInACommonExtent(t *testing.T) {
	o := newInOrder(t)
	var all []uintptr
	for range 4 {
		all = append(all, o.malloc(4*mib, 0))
	}
	require.NoError(t, pause(o.engine, vmm.Options{}))
	require.NoError(t, resume(o.engine, vmm.Options{ExtentBytes: 64 * mib}))
	require.EqualValues(t, 1, o.sim.Stat("handles"))
	o.free(all[1], 0)
	require.Equal(t, all[1], o.malloc(4*mib, 0))
	o.free(all[2], 0)
	require.NoError(t, pause(o.engine, vmm.Options{}), "which waits for the device, not for polls")
	require.NoError(t, resume(o.engine, vmm.Options{}))
	require.EqualValues(t, 3, o.sim.Stat("handles"))
}

// However many frees wait for a stream, one of them is asked about.
func TestAStreamIsPolledOnce(t *testing.T) {
	o := newInOrder(t)
	o.engine.CheckInvariants(false)
	all := mallocs(t, o.engine, 1000, o.request(512, 0))
	for _, a := range all {
		o.free(a, 0)
	}
	before, looks := o.called("cuEventQuery"), o.called("cuThreadExchangeStreamCaptureMode")
	require.Eventually(t, func() bool { return o.called("cuEventQuery") > before+10 }, time.Minute, time.Millisecond)
	queries, calls := o.called("cuEventQuery")-before, o.called("cuThreadExchangeStreamCaptureMode")-looks
	require.LessOrEqual(t, queries, calls, "each look asks once")
	require.Less(t, queries, int64(1000))
}

// A free during a capture calls no driver and goes through no list, however many frees wait.
func TestFreesDuringACaptureDoNotSlowDown(t *testing.T) {
	o := newInOrder(t)
	o.engine.CheckInvariants(false)
	all := mallocs(t, o.engine, 100, vmm.Request{Size: 512, Tag: "t"})
	free := func(addresses []uintptr) {
		for _, a := range addresses {
			require.NoError(t, o.engine.Free(a, true))
		}
	}
	free(all[:50])
	o.calls.Clear()
	untie := o.engine.TieWaiting()
	done := make(chan struct{})
	go func() {
		defer close(done)
		free(all[50:])
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.FailNow(t, "a free goes through those that wait")
	}
	untie()
	o.calls.Range(func(name, _ any) bool { return assert.Fail(t, "a call of the driver", "%v", name) })
	o.engine.FreeDeferred()
	o.engine.Drain()
	require.Zero(t, o.sim.Stat("handles"))
}
