package vmm_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/vmm"
	"tms/vmm/cuda"
)

// inSteps resumes all in an order in which a piece has the step that of returns, or -1 for none. Before each call of
// the driver or the system it looks whether something can be read whose contents are not back.
func (s *scene) inSteps(of func(int) int) {
	back := -1 // the last step that is
	order := vmm.Order{Back: func(step int, _ uint64) {
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
		back = -1
		failpoint.Set(look)
		options := s.options("")
		options.Order = &order
		_, err := s.engine.Resume(options)
		failpoint.Set(s.faults.err)
		s.engine.Drain()
		left := false
		for i, p := range s.all {
			p.paused = s.engine.PausedAt(p.address)
			left = left || p.paused
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
	order := vmm.Order{}
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

// A resume that would have to wait, for memory or for others, changes nothing.
func TestNoOrderWhereAResumeWaits(t *testing.T) {
	sim, driver, engine := simulated(t, 1)
	const size = 4 << 20
	all := filled(t, engine, 2, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, vmm.Options{}))
	order := vmm.Order{
		Ranges: []vmm.OrderedRange{{Address: all[1], Size: size, Step: 1}},
		Back:   func(int, uint64) { require.Fail(t, "something is back") },
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
