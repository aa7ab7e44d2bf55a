package vmm_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/vmm"
	"tms/vmm/cuda"
)

// inSteps resumes all in an order in which a piece has the step that of returns, or -1 for none. Before each call of
// the driver or the system it looks whether something can be read whose contents are not back.
func (s *scene) inSteps(of func(int) int) {
	back := -1       // the last step that is
	var ends []error // what Ended was told
	order := vmm.Order{Ended: func(err error) { ends = append(ends, err) }, Back: func(step int, _ uint64) {
		back = max(back, step)
		for i, p := range s.all {
			if paused := s.engine.PausedAt(p.address); paused && of(i) <= step {
				s.fail("%#x of step %d is paused when step %d is back", p.address, of(i), step)
			}
		}
	}}
	last := 0
	for i, p := range s.all {
		if last = max(last, of(i)); of(i) >= 0 {
			order.Ranges = append(order.Ranges,
				vmm.OrderedRange{Address: p.address, Size: p.request.Size, Step: of(i)})
		}
	}
	look := func(name string) error {
		for i, p := range s.all {
			if of(i) > 0 && p.paused && !p.lost && readable(p.address) && !p.intact() {
				s.fail("%s: %#x of step %d can be read, and its contents are not back", name, p.address, of(i))
			}
		}
		return s.faults.err(name)
	}
	s.do("resume in order", func() error {
		begun := s.engine.Records().Gated() // by the try before
		back, ends = -1, nil
		failpoint.Set(look)
		options := s.options("")
		options.Order = &order
		_, err := s.engine.Resume(options)
		failpoint.Set(s.faults.err)
		s.engine.Drain()
		left, without := false, uint64(0)
		for i, p := range s.all {
			if p.paused = s.engine.PausedAt(p.address); p.paused {
				left, without = true, without+p.request.Size
			}
			switch {
			case p.paused && back >= 0 && of(i) <= back:
				s.fail("%#x of step %d is paused, and step %d was back", p.address, of(i), back)
			case !p.paused && p.lost:
				p.fill(uint64(1000 + i))
			}
		}
		if held := s.engine.Records().Gated(); held != (left && (begun || back >= 0)) {
			s.fail("the gate holds the program: %v; step %d was back; something is paused: %v", held, back, left)
		}
		if err == nil && (left || back != last) {
			s.fail("step %d is back, and something is paused: %v", back, left)
		}
		if back < 0 && len(ends) > 0 || back >= 0 && (len(ends) != 1 || !errors.Is(err, ends[0])) {
			s.fail("step %d is back; the caller was told %v, and got %v", back, ends, err)
		}
		for _, d := range s.engine.Records().Recorded().Devices {
			for _, t := range d.Tags {
				without -= t.PausedBytes
			}
		}
		if _, fired := s.faults.count(); without != 0 && fired == 1 {
			s.fail("%d bytes of what is paused have memory", int64(without))
		}
		return err
	})
	s.check("resumed in order", true)
}

// ordered is a scenario of memory of every kind that comes back in an order.
func (s *scene) ordered() {
	for i := range 10 {
		r := kinds[i%5]
		r.Size, r.Device, r.Tag = sceneGranularity*uint64(1+i%3), i/5, string(rune('a'+i%2))
		s.malloc(r)
		s.context, _ = s.driver.CtxGetCurrent()
	}
	s.pause("")
	s.free(func(i int) bool { return i == 7 })
	s.inSteps(func(i int) int { return i%4 - 1 })
	s.end()
}

// Whichever call fails, nothing can be read before its contents are back. What is back stays, and the rest is paused
// with its contents.
func TestSweepOrdered(t *testing.T) { sweep(t, (*scene).ordered, 50, true) }

// What no range names comes back first, and a piece that several name at the earliest of their steps; small steps come
// together.
func TestResumeInOrder(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 6, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	defer vmm.TimesMost(vmm.TimesMost(2)) // by half of what is named
	of := func(i, step int) vmm.OrderedRange {
		return vmm.OrderedRange{Address: all[i], Size: size, Step: step}
	}
	var back [][]int
	var steps []int
	_, err := engine.Resume(vmm.Options{Order: &vmm.Order{
		Ended:  func(err error) { require.NoError(t, err) },
		Ranges: []vmm.OrderedRange{of(0, 4), of(1, 3), of(2, 2), of(3, 1), of(4, 9), of(4, 0), of(0, 7)},
		Back: func(step int, _ uint64) {
			active := []int{}
			for i, address := range all {
				if !engine.PausedAt(address) {
					active = append(active, i)
				}
			}
			back, steps = append(back, active), append(steps, step)
		},
	}})
	require.NoError(t, err)
	require.Equal(t, []int{0, 2, 4}, steps)
	require.Equal(t, [][]int{{4, 5}, {2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}, back)
	requireAll(t, all, size)
	stats, err := engine.Records().Stats()
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Devices[0].Resumes.Count)
	require.EqualValues(t, 6*size, stats.Devices[0].Resumes.Bytes)
}

// What no range names comes first also where ranges name bytes beside it: each byte of a slab, of another segment those
// that were asked for.
func TestWhatNoRangeNamesComesFirst(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 4 << 20
	r := vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost}
	small := vmm.Request{Size: 4096, Tag: "t", Backup: vmm.BackupHost}
	named, unnamed := malloc(t, engine, small), malloc(t, engine, small)
	begins, ends, gap, whole := malloc(t, engine, r), malloc(t, engine, r), malloc(t, engine, r), malloc(t, engine, r)
	r.Size -= 4096
	odd := malloc(t, engine, r)
	require.NoError(t, pause(engine, vmm.Options{}))
	first := map[uintptr]bool{}
	_, err := engine.Resume(vmm.Options{Order: &vmm.Order{
		Ended: func(err error) { require.NoError(t, err) },
		Ranges: []vmm.OrderedRange{
			{Address: named, Size: 4096, Step: 1},
			{Address: begins, Size: size - 1, Step: 1},
			{Address: ends + 1, Size: size - 1, Step: 1},
			{Address: gap, Size: 4096, Step: 1}, {Address: gap + 4097, Size: size - 4097, Step: 1},
			{Address: whole + size/2, Size: size / 2, Step: 2}, {Address: whole, Size: size / 2, Step: 1},
			{Address: odd, Size: r.Size, Step: 1},
		},
		Back: func(step int, _ uint64) {
			for _, address := range []uintptr{named, unnamed, begins, ends, gap, whole, odd} {
				first[address] = first[address] || step == 0 && !engine.PausedAt(address)
			}
		},
	}})
	require.NoError(t, err)
	for _, address := range []uintptr{named, unnamed, begins, ends, gap} {
		require.True(t, first[address])
	}
	require.False(t, first[whole] || first[odd])
}

// A step's number says nothing but its place in the order.
func TestAnyStep(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 2, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	var steps []int
	_, err := engine.Resume(vmm.Options{Order: &vmm.Order{
		Ended:  func(err error) { require.NoError(t, err) },
		Ranges: []vmm.OrderedRange{{Address: all[0], Size: size, Step: math.MaxInt}},
		Back:   func(step int, _ uint64) { steps = append(steps, step) },
	}})
	require.NoError(t, err)
	require.Equal(t, []int{0, math.MaxInt}, steps)
	requireAll(t, all, size)
}

// A pause, a resume and a free that come in the middle find each piece paused or back.
func TestOthersDuringAnOrder(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 4, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	order := vmm.Order{Ended: func(err error) { require.NoError(t, err) }}
	for i, address := range all {
		order.Ranges = append(order.Ranges, vmm.OrderedRange{Address: address, Size: size, Step: i})
	}
	paused := make(chan error, 1)
	order.Back = func(step int, _ uint64) {
		switch step {
		case 0:
			go func() { paused <- pause(engine, vmm.Options{}) }()
			require.NoError(t, engine.Free(all[3], false), "a piece that is on its way")
		case 1:
			require.NoError(t, engine.Free(all[0], false), "a piece that is back")
		}
		require.Empty(t, paused, "the pause waits until all is back")
	}
	_, err := engine.Resume(vmm.Options{Order: &order})
	require.NoError(t, err)
	require.NoError(t, <-paused)
	require.True(t, engine.PausedAt(all[1]) && engine.PausedAt(all[2]))
	require.False(t, engine.Records().Gated(), "what the program has paused itself")
	require.NoError(t, resume(engine, vmm.Options{}))
	for i, address := range all[1:3] {
		requireFilled(t, address, size, uint64(i+1))
	}
	frees(t, engine, all[1:3]...)
}

// An allocation that comes between two steps takes no memory of later steps, on whichever device: they have theirs.
func TestAnOrderTakesAllItsMemoryFirst(t *testing.T) {
	sim, driver, engine := simulated(t, 2)
	const size = 4 << 20
	r := vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost}
	all := filled(t, engine, 3, r)
	r.Device = 1
	other := malloc(t, engine, r)
	fill(other, size, 4)
	require.NoError(t, pause(engine, vmm.Options{}))
	order := vmm.Order{Ended: func(err error) { require.NoError(t, err) }}
	for i, address := range append(all, other) {
		order.Ranges = append(order.Ranges, vmm.OrderedRange{Address: address, Size: size, Step: i})
	}
	steps, hogs := 0, []cuda.Handle{}
	order.Back = func(step int, mapped uint64) {
		steps++
		require.EqualValues(t, steps*size, mapped)
		for device := range 2 {
			if free := sim.Stat(fmt.Sprintf("free:%d", device)); free > 0 {
				require.Zero(t, step, "memory has become free")
				hog, err := driver.MemCreate(free, device)
				require.NoError(t, err)
				hogs = append(hogs, hog)
			}
		}
	}
	mapped, err := engine.Resume(vmm.Options{Order: &order, ExtentBytes: 64 << 20})
	require.NoError(t, err)
	require.EqualValues(t, [2]int{4 * size, 4}, [2]int{int(mapped), steps})
	requireAll(t, all, size)
	requireFilled(t, other, size, 4)
	frees(t, engine, append(all, other)...)
	engine.Drain()
	for _, hog := range hogs {
		require.NoError(t, driver.MemRelease(hog))
	}
	require.Zero(t, sim.Stat("handles"))
}

// What is freed before its step takes its memory with it, also where other memory of the step shares the handle.
func TestFreesBeforeTheirStep(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 6, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	order := vmm.Order{Ended: func(err error) { require.NoError(t, err) }}
	for i, address := range all {
		order.Ranges = append(order.Ranges, vmm.OrderedRange{Address: address, Size: size, Step: i / 2})
	}
	order.Back = func(step int, _ uint64) {
		if step == 0 {
			require.EqualValues(t, 3, sim.Stat("handles"))
			frees(t, engine, all[2], all[4], all[5]) // a part of the next step's memory, and all of the last step's
			require.EqualValues(t, 2, sim.Stat("handles"))
		}
	}
	engine.CheckInvariants(true)
	_, err := engine.Resume(vmm.Options{Order: &order, ExtentBytes: 64 << 20})
	require.NoError(t, err)
	for _, i := range []int{0, 1, 3} {
		requireFilled(t, all[i], size, uint64(i))
	}
	again := malloc(t, engine, vmm.Request{Size: size, Tag: "t"})
	require.Equal(t, all[2], again, "beside what shares its handle")
	require.EqualValues(t, 2, sim.Stat("handles"))
	frees(t, engine, all[0], all[1], all[3], again)
}

// A resume that would have to wait, for memory or for others, changes nothing.
func TestNoOrderWhereAResumeWaits(t *testing.T) {
	sim, driver, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 2, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	order := vmm.Order{
		Ranges: []vmm.OrderedRange{{Address: all[1], Size: size, Step: 1}},
		Back:   func(int, uint64) { require.Fail(t, "something is back") },
		Ended:  func(error) { require.Fail(t, "something was back") },
	}
	hog, err := driver.MemCreate(sim.Stat("free:0")-size, 0)
	require.NoError(t, err)
	_, err = engine.Resume(vmm.Options{Order: &order})
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.NoError(t, driver.MemRelease(hog))
	_, err = engine.Resume(vmm.Options{Barred: func(string) string { return "others" }, Order: &order})
	require.ErrorIs(t, err, vmm.ErrBarred)
	_, err = engine.Resume(vmm.Options{Capturing: true, Order: &order})
	require.ErrorIs(t, err, vmm.ErrCapturing)
	require.True(t, !slices.ContainsFunc(all, func(a uintptr) bool { return !engine.PausedAt(a) }))
	require.NoError(t, resume(engine, vmm.Options{}))
	requireAll(t, all, size)
}

// Other threads allocate and free while memory comes back in an order, also in slabs and beside what shares a handle.
func TestAllocationsDuringOrders(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	engine.CheckInvariants(true)
	const size = 4 << 20
	r := vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost}
	all := filled(t, engine, 8, r)
	small := vmm.Request{Size: 4096, Tag: "t", Backup: vmm.BackupHost}
	var others sync.WaitGroup
	var over atomic.Bool
	for n := range 3 {
		others.Go(func() {
			for i := 0; !over.Load(); i++ {
				kind := []vmm.Request{small, r}[(i+n)%2]
				address, err := engine.Malloc(kind)
				if err == nil {
					err = engine.Free(address, false)
				}
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	for round := range 12 {
		require.NoError(t, pause(engine, vmm.Options{}))
		extra := malloc(t, engine, r)
		require.NoError(t, pause(engine, vmm.Options{}))
		order := vmm.Order{Ended: func(err error) { require.NoError(t, err) }}
		for i, address := range all {
			order.Ranges = append(order.Ranges, vmm.OrderedRange{Address: address, Size: size, Step: (i + round) % 4})
		}
		order.Ranges = append(order.Ranges, vmm.OrderedRange{Address: extra, Size: size, Step: 1 + round%3})
		order.Back = func(step int, _ uint64) {
			if step == 0 {
				frees(t, engine, extra)
			}
		}
		_, err := engine.Resume(vmm.Options{Order: &order, ExtentBytes: 64 << 20})
		require.NoError(t, err)
		requireAll(t, all, size)
	}
	over.Store(true)
	others.Wait()
	frees(t, engine, all...)
	engine.Drain()
	require.Zero(t, sim.Stat("handles"))
}

// orderOf returns an order of pieces of one size.
func orderOf(t *testing.T, all []uintptr, size uint64, step func(int) int) *vmm.Order {
	o := &vmm.Order{Back: func(int, uint64) {}, Ended: func(err error) { require.NoError(t, err) }}
	for i, address := range all {
		o.Ranges = append(o.Ranges, vmm.OrderedRange{Address: address, Size: size, Step: step(i)})
	}
	return o
}

// Where a piece was freed before its step, its slack says nothing of later orders: what shares its handle comes back.
func TestAnOrderAfterAFreeBeforeAStep(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	engine.CheckInvariants(true)
	const size, extents = 4 << 20, 64 << 20
	all := filled(t, engine, 4, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	order := orderOf(t, all, size, func(i int) int { return i / 2 })
	order.Back = func(step int, _ uint64) {
		if step == 0 {
			frees(t, engine, all[2]) // it lies before all[3]
		}
	}
	_, err := engine.Resume(vmm.Options{Order: order, ExtentBytes: extents})
	require.NoError(t, err)
	sim.Fail("cuMemRelease", 1, 999)
	sim.Fail("cuMemRelease", 2, 999)
	require.Error(t, pause(engine, vmm.Options{}))
	sim.ClearFailures()
	rest := []uintptr{all[0], all[1], all[3]}
	order = orderOf(t, rest, size, func(int) int { return 0 })
	_, err = engine.Resume(vmm.Options{Order: order, ExtentBytes: extents})
	require.NoError(t, err)
	for _, i := range []int{0, 1, 3} {
		requireFilled(t, all[i], size, uint64(i))
	}
	frees(t, engine, rest...)
}

// After a resume that has failed, memory that shares its handle with slack is at no address, too.
func TestAFailedResumeBesideSlack(t *testing.T) {
	sim, driver, engine := simulated(t, 1)
	engine.CheckInvariants(true)
	const size = 4 << 20
	r := vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost}
	all := filled(t, engine, 2, r)
	require.NoError(t, pause(engine, vmm.Options{}))
	require.NoError(t, resume(engine, vmm.Options{ExtentBytes: 64 << 20}))
	frees(t, engine, all[0])
	r.Tag = "another"
	another := malloc(t, engine, r)
	sim.Fail("cuMemRelease", 1, 999)
	require.Error(t, pause(engine, vmm.Options{}))
	sim.ClearFailures()
	require.NoError(t, pause(engine, vmm.Options{Tags: []string{"another"}}))
	hog, err := driver.MemCreate(sim.Stat("free:0"), 0)
	require.NoError(t, err)
	require.ErrorIs(t, resume(engine, vmm.Options{}), cuda.OutOfMemory)
	require.False(t, readable(all[1]))
	require.NoError(t, driver.MemRelease(hog))
	require.NoError(t, resume(engine, vmm.Options{}))
	requireFilled(t, all[1], size, 1)
	frees(t, engine, all[1], another)
}

// A client that asks again for a resume does not wait for its turn, and looks at memory that an order is mapping. (For
// the race detector.)
func TestALookAtNeedsDuringAnOrder(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 6, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	var others sync.WaitGroup
	var over atomic.Bool
	others.Go(func() {
		for !over.Load() {
			engine.LookAtNeeds()
		}
	})
	// Whatever this waited for would order what the detector must see as not ordered.
	defer at("cuMemSetAccess", func() error { time.Sleep(5 * time.Millisecond); return nil })()
	_, err := engine.Resume(vmm.Options{Order: orderOf(t, all, size, func(i int) int { return i })})
	over.Store(true)
	require.NoError(t, err)
	others.Wait()
	requireAll(t, all, size)
	frees(t, engine, all...)
}

// After a panic behind the first step, too, the caller knows that the rest does not come.
func TestAPanicDuringAnOrder(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 2, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	var ended []error
	order := orderOf(t, all, size, func(i int) int { return i })
	order.Ended = func(err error) { ended = append(ended, err) }
	vmm.HostOf(engine).SetGated(func(bool) { panic("on purpose") })
	_, err := engine.Resume(vmm.Options{Order: order})
	vmm.HostOf(engine).SetGated(nil)
	require.ErrorContains(t, err, "on purpose")
	require.Len(t, ended, 1)
	require.ErrorContains(t, ended[0], "on purpose")
	require.NoError(t, resume(engine, vmm.Options{}))
	requireAll(t, all, size)
	frees(t, engine, all...)
}
