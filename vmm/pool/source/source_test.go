package source_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/bfc"
	"tms/vmm/pool/source"
	"tms/vmm/pool/streams"
)

const mib = 1 << 20

// world is a simulated device of 64 MiB, an engine on it, and what the process does.
type world struct {
	t      *testing.T
	sim    *cudasim.Sim
	driver *cuda.Driver
	engine *vmm.Engine
	state  source.State
	noted  int64 // bytes

	malloc func(*uintptr, uint64) int32
	free   func(uintptr) int32
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Setenv("CUDASIM_MEMORY", "64M")
	sim := cudasim.Start(t)
	w := &world{t: t, sim: sim}
	var err error
	w.driver, err = cuda.Open(sim.Path)
	require.NoError(t, err)
	w.engine = vmm.New(w.driver, &vmm.Solitary{}, vmm.Settings{})
	purego.RegisterLibFunc(&w.malloc, sim.Handle, "cuMemAlloc_v2")
	purego.RegisterLibFunc(&w.free, sim.Handle, "cuMemFree_v2")
	device, err := w.driver.DeviceGet(0)
	require.NoError(t, err)
	context, err := w.driver.DevicePrimaryCtxRetain(device)
	require.NoError(t, err)
	require.NoError(t, w.driver.CtxSetCurrent(context))
	return w
}

// all is the interface of both sources.
type all interface {
	pool.DeviceSource
	Close() error
}

func (w *world) plain() all {
	w.t.Helper()
	result := func(code int32) error {
		if code == 0 {
			return nil
		}
		return cuda.Result(code)
	}
	s, err := source.NewPlain(w.driver, 0, func(size uint64) (address uintptr, err error) {
		err = result(w.malloc(&address, size))
		return address, err
	}, func(address uintptr) error { return result(w.free(address)) }, func() source.State { return w.state },
		func(bytes int64) { w.noted += bytes })
	require.NoError(w.t, err)
	return s
}

func (w *world) segments() all {
	w.t.Helper()
	request := vmm.Request{Tag: "pool", Backup: vmm.BackupHost}
	s, err := source.NewSegments(w.engine, w.driver, request, func() source.State { return w.state })
	require.NoError(w.t, err)
	return s
}

func each(t *testing.T, test func(t *testing.T, w *world, s all)) {
	for name, of := range map[string]func(*world) all{"plain": (*world).plain, "segments": (*world).segments} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := of(w)
			test(t, w, s)
			w.state.Capturing = false
			require.NoError(t, s.Close())
			require.Zero(t, w.sim.Stat("events"), "events left over")
		})
	}
}

func allocate(t *testing.T, s pool.Source, size uint64) uintptr {
	t.Helper()
	address, err := s.Allocate(size)
	require.NoError(t, err)
	return address
}

func free(t *testing.T, s all) uint64 {
	t.Helper()
	free, total, err := s.Memory()
	require.NoError(t, err)
	require.EqualValues(t, 64*mib, total)
	return free
}

func TestSegmentsComeAndGo(t *testing.T) {
	each(t, func(t *testing.T, w *world, s all) {
		before := free(t, s)
		address := allocate(t, s, 10*mib)
		require.Contains(t, []int64{0, 10 * mib}, w.noted, "only what is CUDA's own memory is noted")
		require.Zero(t, address%512)
		require.Equal(t, before-10*mib, free(t, s))
		*(*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))) = 1
		for _, size := range []uint64{60 * mib, 65 * mib} {
			_, err := s.Allocate(size)
			require.ErrorIs(t, err, pool.ErrOutOfMemory)
		}
		require.NoError(t, s.Free(address, 10*mib))
		require.Zero(t, w.noted)
		require.Equal(t, before, free(t, s))
		require.Error(t, s.Free(address, 10*mib))
	})
}

func TestWhileAStreamIsCaptured(t *testing.T) {
	var begin func(cuda.Stream, int32) int32
	var end func(cuda.Stream, *uintptr) int32
	each(t, func(t *testing.T, w *world, s all) {
		purego.RegisterLibFunc(&begin, w.sim.Handle, "cuStreamBeginCapture_v2")
		purego.RegisterLibFunc(&end, w.sim.Handle, "cuStreamEndCapture")
		before := free(t, s)
		address := allocate(t, s, 2*mib)
		stream, err := w.driver.StreamCreate()
		require.NoError(t, err)
		require.Zero(t, begin(stream, 0), "the mode that forbids most")
		w.state.Capturing = true
		second := allocate(t, s, 2*mib)
		require.NoError(t, s.Free(address, 2*mib), "put off")
		var graph uintptr
		require.Zero(t, end(stream, &graph), "the capture is intact")
		w.state.Capturing = false
		w.engine.FreeDeferred()
		require.NoError(t, s.Free(second, 2*mib))
		require.Equal(t, before, free(t, s))
		require.NoError(t, w.driver.StreamDestroy(stream))
	})
}

func TestLateFreesMakeRoom(t *testing.T) {
	each(t, func(t *testing.T, w *world, s all) {
		address := allocate(t, s, 40*mib)
		w.state.Capturing = true
		require.NoError(t, s.Free(address, 40*mib))
		w.state.Capturing = false
		address = allocate(t, s, 40*mib)
		require.NoError(t, s.Free(address, 40*mib))
	})
}

func TestEvents(t *testing.T) {
	each(t, func(t *testing.T, w *world, s all) {
		stream, err := w.driver.StreamCreate()
		require.NoError(t, err)
		event, err := s.Record(pool.Stream(stream))
		require.NoError(t, err)
		w.sim.Fail("cuEventQuery", 1, 600)
		done, err := s.Query(event)
		require.NoError(t, err)
		require.False(t, done)
		done, err = s.Query(event)
		require.NoError(t, err)
		require.True(t, done)
		w.sim.Fail("cuEventQuery", 1, 999)
		_, err = s.Query(event)
		require.ErrorIs(t, err, cuda.Unknown)
		require.NoError(t, s.Synchronize(event))
		require.NoError(t, s.Destroy(event))

		w.sim.Fail("cuEventRecord", 1, 999)
		_, err = s.Record(pool.Stream(stream))
		require.ErrorIs(t, err, cuda.Unknown)
		again, err := s.Record(pool.Stream(stream))
		require.NoError(t, err)
		require.Equal(t, event, again, "events are used again")
		require.NoError(t, s.Destroy(again))
		require.NoError(t, w.driver.StreamDestroy(stream))
	})
}

func TestSegmentsArePausable(t *testing.T) {
	w := newWorld(t)
	s := w.segments()
	before := free(t, s)
	address := allocate(t, s, 4*mib)
	only := vmm.Options{Tags: []string{"pool"}}
	_, err := w.engine.Pause(only)
	require.NoError(t, err)
	require.Equal(t, before, free(t, s))
	_, err = w.engine.Resume(only)
	require.NoError(t, err)
	require.NoError(t, s.Free(address, 4*mib))
	w.engine.Trim()

	w.state.Margin = 62 * mib
	_, err = s.Allocate(4 * mib)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.ErrorIs(t, err, vmm.ErrMargin)
}

func TestNoSuchDevice(t *testing.T) {
	w := newWorld(t)
	_, err := source.NewSegments(w.engine, w.driver, vmm.Request{Device: 3}, nil)
	require.Error(t, err)
	_, err = source.NewPlain(w.driver, 3, nil, nil, nil, nil)
	require.Error(t, err)
}

// Regions of TensorFlow's allocator are side by side, whatever else its tag has, and a block may lie across them: the
// whole limit except one block can be allocated again. A block that lies across is written, paused, resumed and read in
// one copy.
func TestBlocksAcrossSegments(t *testing.T) {
	for name, joins := range map[string]bool{"segments": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // whose context the copies are made in
			defer runtime.UnlockOSThread()
			w := newWorld(t)
			from := map[string]func() all{"segments": w.segments, "plain": w.plain}[name]()
			options, err := pool.ParseOptions("memory_limit=32MiB")
			require.NoError(t, err)
			p, err := bfc.New(from, options)
			require.NoError(t, err)
			var blocks []pool.Block
			for range 8 {
				b, err := p.Malloc(4*mib, 0)
				require.NoError(t, err)
				blocks = append(blocks, b)
				other, err := w.engine.Malloc(vmm.Request{Size: 2 * mib, Tag: "pool"})
				require.NoError(t, err)
				defer func() { require.NoError(t, w.engine.Free(other, false)) }()
			}
			for _, b := range blocks[:7] {
				require.NoError(t, p.Free(b.Address))
			}
			large, err := p.Malloc(28*mib, 0)
			if !joins {
				require.ErrorIs(t, err, pool.ErrOutOfMemory)
				require.NoError(t, p.Destroy())
				return
			}
			require.NoError(t, err)
			put := make([]byte, large.Size)
			for i := range put {
				put[i] = byte(i >> 12)
			}
			require.NoError(t, w.driver.MemcpyHtoDAsync(large.Address, uintptr(unsafe.Pointer(&put[0])), large.Size, 0))
			_, err = w.engine.Pause(vmm.Options{})
			require.NoError(t, err)
			_, err = w.engine.Resume(vmm.Options{})
			require.NoError(t, err)
			got := make([]byte, large.Size)
			require.NoError(t, w.driver.MemcpyDtoHAsync(uintptr(unsafe.Pointer(&got[0])), large.Address, large.Size, 0))
			require.NoError(t, w.driver.CtxSynchronize())
			require.Equal(t, put, got)
			require.NoError(t, p.Destroy())
			w.engine.FreeDeferred()
			w.driver.Reclaim.Drain()
			free, total, err := from.Memory()
			require.NoError(t, err)
			require.Equal(t, total-8*2*mib, free)
		})
	}
}

// Each stream's pool has its regions side by side, though they are made by turns.
func TestStreamsHaveRoomsOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	p, err := streams.New(w.segments(), func(from pool.Source) (pool.Pool, error) {
		options, err := pool.ParseOptions("memory_limit=24MiB")
		if err != nil {
			return nil, err
		}
		return bfc.New(from, options)
	})
	require.NoError(t, err)
	var blocks [2][]pool.Block
	for i := range 12 {
		b, err := p.Malloc(4*mib, pool.Stream(i%2))
		require.NoError(t, err)
		blocks[i%2] = append(blocks[i%2], b)
	}
	for stream, own := range blocks {
		for _, b := range own[:5] {
			require.NoError(t, p.Free(b.Address))
		}
		_, err := p.Malloc(20*mib, pool.Stream(stream))
		require.NoError(t, err)
	}
	require.EqualValues(t, 48*mib, p.Stats().Reserved)
	require.NoError(t, p.Destroy())
}

func TestHostMemory(t *testing.T) {
	for _, kind := range []string{"pinned", "host"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			s, err := source.NewHost(w.driver, 0, kind, func() source.State { return w.state })
			require.NoError(t, err)
			device, _, err := w.plain().Memory()
			require.NoError(t, err)
			address := allocate(t, s, 2*mib)
			memory := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), address)), 2*mib)
			memory[0], memory[2*mib-1] = 1, 2
			still, _, err := w.plain().Memory()
			require.NoError(t, err)
			require.Equal(t, device, still)
			held, total, err := s.Memory()
			require.NoError(t, err)
			require.Less(t, held, total)
			_, err = s.Allocate(1 << 56)
			require.ErrorIs(t, err, pool.ErrOutOfMemory)
			require.ErrorContains(t, err, "of host memory")

			w.state.Capturing = true
			during := allocate(t, s, mib)
			require.NoError(t, s.Free(during, mib))
			require.ErrorIs(t, s.Close(), vmm.ErrCapturing, "it goes when the capture has ended")
			w.state.Capturing = false
			require.NoError(t, s.Free(address, 2*mib))
			require.NoError(t, s.Close())
		})
	}
	w := newWorld(t)
	_, err := source.NewHost(w.driver, 0, "disk", nil)
	require.ErrorIs(t, err, pool.ErrOption)
	_, err = source.NewHost(w.driver, 3, "host", nil)
	require.Error(t, err)
}

// A pool with a limit sees the limit as the device's memory, and its refusal as a lack of memory.
func TestLimit(t *testing.T) {
	w := newWorld(t)
	s, err := source.NewSegments(w.engine, w.driver, vmm.Request{Tag: "pool", Limit: 40 * mib},
		func() source.State { return w.state })
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	memory := func() [2]uint64 {
		free, total, err := s.Memory()
		require.NoError(t, err)
		return [2]uint64{free / mib, total / mib}
	}
	require.Equal(t, [2]uint64{40, 40}, memory())
	address, err := s.Allocate(16 * mib)
	require.NoError(t, err)
	require.Equal(t, [2]uint64{24, 40}, memory())
	_, err = s.Allocate(26 * mib)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.ErrorContains(t, err, "it has 16.00 MiB of 40.00 MiB")
	require.NoError(t, s.Free(address, 16*mib))
}
