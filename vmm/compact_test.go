package vmm_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// stopped is a Compactor of a program that does nothing on the devices by itself.
type stopped struct{ *vmm.Engine }

func (stopped) CanCompact() bool { return true }
func (s stopped) Compact(ordinal int) error {
	_, err := s.Engine.Compact(ordinal)
	return err
}

// unable is a Compactor whose gate does not close when it is asked to.
type unable struct{}

func (unable) CanCompact() bool  { return true }
func (unable) Compact(int) error { return cuda.Refuse(cuda.Timeout, "a thread is in a long call") }

// These tests have granules of 64 KiB in place of 2 MiB, and all else in proportion: memory is touched here.
const granule = 64 * kib

// scaled returns an engine on a device of 512 granules, where 80 MiB are 40.
func scaled(t *testing.T) (*cudasim.Sim, *cuda.Driver, *vmm.Engine) {
	t.Helper()
	t.Setenv("CUDASIM_GRANULARITY", fmt.Sprint(granule))
	sim, driver, e := simulatedWith(t, 1, fmt.Sprint(512*granule))
	e.CheckInvariants(true)
	return sim, driver, e
}

// eighty is what extents have by default, in these granules.
var eighty = vmm.Options{ExtentBytes: 40 * granule}

// Without a gate, what a resume of a nearly full device puts into shared extents is bounded: a sixteenth of the device.
// So a program that frees what it only caches, and asks again, finds all but that.
func TestStrandedIsBounded(t *testing.T) {
	hermetic.Thorough(t)
	for _, granules := range []uint64{1, 3, 10, 17} {
		t.Run(fmt.Sprint(granules), func(t *testing.T) {
			sim, _, e := scaled(t)
			const total = 512 * granule
			size := granules * granule
			all := mallocs(t, e, int(400/granules), vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
			cycle(t, e, eighty)
			cycle(t, e, eighty)
			live := uint64(0)
			for i, a := range all {
				if i%4 == 0 {
					live += size
				} else {
					frees(t, e, a)
				}
			}
			slack := tagStats(t, e, "t").SlackBytes
			require.LessOrEqual(t, slack, uint64(total/16))
			if granules <= 10 {
				require.Less(t, sim.Stat("handles"), uint64(len(all)))
			}
			malloc(t, e, vmm.Request{Size: total - live - total/16, Tag: "u"})
		})
	}
}

// Where much of the device is free, more shares. Even if nearly all of that becomes slack, the program can have as much
// as it ever had, and a quarter of the device more.
func TestMoreIsSharedWhereMuchIsFree(t *testing.T) {
	hermetic.Thorough(t)
	pieces := func(t *testing.T) (*cudasim.Sim, *vmm.Engine, []uintptr) {
		sim, _, e := scaled(t)
		return sim, e, mallocs(t, e, 100, vmm.Request{Size: 2 * granule, Tag: "t"})
	}
	t.Run("as much as ever and a quarter more", func(t *testing.T) {
		sim, e, all := pieces(t)
		cycle(t, e, eighty)
		require.EqualValues(t, 5+8, sim.Stat("handles"), "512 - 200 - 128 granules share, of which an extent has 40")
		for i, a := range all {
			if i%20 > 0 {
				frees(t, e, a)
			}
		}
		require.Greater(t, tagStats(t, e, "t").SlackBytes, uint64(512*granule/16))
		malloc(t, e, vmm.Request{Size: (200 + 128 - 5*2) * granule, Tag: "u"})
	})
	for name, before := range map[string]func(*testing.T, *vmm.Engine){
		"it had more": func(t *testing.T, e *vmm.Engine) {
			frees(t, e, malloc(t, e, vmm.Request{Size: 200 * granule, Tag: "u"}))
		},
		"it wanted more": func(t *testing.T, e *vmm.Engine) {
			_, err := e.Malloc(vmm.Request{Size: (512 - 200 + 1) * granule, Tag: "u"})
			require.ErrorIs(t, err, cuda.OutOfMemory)
		},
		"another tag is paused": func(t *testing.T, e *vmm.Engine) {
			malloc(t, e, vmm.Request{Size: 200 * granule, Tag: "u"})
			require.NoError(t, pause(e, vmm.Options{Tags: []string{"u"}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			sim, e, _ := pieces(t)
			before(t, e)
			cycle(t, e, vmm.Options{Tags: []string{"t"}, ExtentBytes: eighty.ExtentBytes})
			require.EqualValues(t, 1+84, sim.Stat("handles"), "32 granules share")
		})
	}
}

// The bound counts what other tags have in shared extents already, and those that save the most come first.
func TestSmallOnesShareFirst(t *testing.T) {
	sim, _, e := scaled(t)
	malloc(t, e, vmm.Request{Size: 300 * granule, Tag: "rest"}) // so 32 granules may be shared
	mallocs(t, e, 10, vmm.Request{Size: 10 * granule, Tag: "large"})
	mallocs(t, e, 16, vmm.Request{Size: granule, Tag: "small"})
	cycle(t, e, eighty)
	require.EqualValues(t, 1+10+1, sim.Stat("handles"), "16 granules are left, less than two large ones")
	mallocs(t, e, 30, vmm.Request{Size: granule, Tag: "others"})
	cycle(t, e, vmm.Options{Tags: []string{"others"}, ExtentBytes: eighty.ExtentBytes})
	require.EqualValues(t, 1+10+1+1+14, sim.Stat("handles"), "16 of 30")
}

// Small segments share first where larger ones lie between them, too.
func TestSmallOnesShareAmongLargeOnes(t *testing.T) {
	sim, _, e := scaled(t)
	malloc(t, e, vmm.Request{Size: 100 * granule, Tag: "rest"}) // so 32 granules may be shared
	for range 10 {
		mallocs(t, e, 1, vmm.Request{Size: 30 * granule, Tag: "t"})
		mallocs(t, e, 4, vmm.Request{Size: granule, Tag: "t"})
	}
	cycle(t, e, eighty)
	require.EqualValues(t, 1+10+2*4+8, sim.Stat("handles"), "eight groups of four share")
}

// With a gate, what is live moves out of extents with slack when memory runs out, also for a resume, and keeps its
// address and what it holds.
func TestCompact(t *testing.T) {
	sim, _, e := scaled(t)
	vmm.HostOf(e).SetCompactor(stopped{e})
	const size = 4 * granule
	kinds := []vmm.Request{{Backup: vmm.BackupHost, Incremental: true}, {Backup: vmm.BackupSparse}, {}}
	var all []uintptr
	for i := range 120 {
		r := kinds[i%len(kinds)]
		r.Size, r.Tag = size, "t"
		all = append(all, malloc(t, e, r))
	}
	small := malloc(t, e, vmm.Request{Size: 700, Tag: "t"})
	cycle(t, e, eighty)
	require.Less(t, sim.Stat("handles"), uint64(20))
	var live []uintptr
	for i, a := range all {
		if i%4 == 1 {
			live = append(live, a)
			fill(a, size, uint64(len(live)))
		} else {
			frees(t, e, a)
		}
	}
	*wordAt(small) = 7
	require.EqualValues(t, 90*size, tagStats(t, e, "t").SlackBytes-(granule-700))
	intact := func() {
		t.Helper()
		for i, a := range live {
			requireFilled(t, a, size, uint64(i+1))
		}
		require.EqualValues(t, 7, *wordAt(small))
	}
	big := malloc(t, e, vmm.Request{Size: (512 - 30*4 - 1) * granule, Tag: "u", Backup: vmm.BackupHost})
	require.Zero(t, sim.Stat("free:0"))
	require.False(t, e.Records().Gated())
	intact()

	// Now the slack is in the way of a resume.
	require.NoError(t, pause(e, name("u")))
	o := name("t")
	o.ExtentBytes, o.SaveAll = eighty.ExtentBytes, true
	more := mallocs(t, e, 60, vmm.Request{Size: size, Tag: "t"})
	cycle(t, e, o)
	frees(t, e, more...)
	require.Positive(t, tagStats(t, e, "t").SlackBytes)
	require.NoError(t, resume(e, name("u")))
	intact()
	require.NoError(t, e.Free(big, false))
}

// A stranger finds the memory that a compaction gives back, though the engine was not asked to allocate.
func TestMakeRoom(t *testing.T) {
	_, driver, e := scaled(t)
	require.False(t, e.MakeRoom(0))
	vmm.HostOf(e).SetCompactor(stopped{e})
	all := mallocs(t, e, 20, vmm.Request{Size: 4 * granule, Tag: "t"})
	cycle(t, e, eighty)
	require.False(t, e.MakeRoom(0), "there is no slack")
	frees(t, e, all[1:]...)
	require.True(t, e.MakeRoom(0))
	require.False(t, e.MakeRoom(0))
	hog, err := driver.MemCreate((512-4)*granule, 0)
	require.NoError(t, err)
	require.NoError(t, driver.MemRelease(hog))
}

// Where not a single copy finds room, one extent goes through host memory. If another process then takes the memory,
// its segments wait, as after a pause, with what they hold.
func TestCompactThroughTheHost(t *testing.T) {
	for name, taken := range map[string]bool{"room": false, "no room": true} {
		t.Run(name, func(t *testing.T) { throughTheHost(t, taken) })
	}
}

func throughTheHost(t *testing.T, taken bool) {
	const size = 4 * granule
	sim, driver, e := scaled(t)
	vmm.HostOf(e).SetCompactor(stopped{e})
	all := filled(t, e, 40, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost, Incremental: true})
	cycle(t, e, eighty)
	hog, err := driver.MemCreate(sim.Stat("free:0"), 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, driver.MemRelease(hog)) }()
	for i, a := range all {
		if i%2 == 1 {
			frees(t, e, a)
		} else {
			fill(a, size, uint64(i)+100)
		}
	}
	var thief cuda.Handle
	var released atomic.Bool
	var steal sync.Once
	failpoint.Set(func(call string) error { // background work calls, too
		if call == "cuMemRelease" {
			released.Store(true)
		}
		if taken && released.Load() && call == "cuMemCreate" {
			steal.Do(func() {
				failpoint.Set(nil)
				made, err := driver.MemCreate(sim.Stat("free:0"), 0)
				require.NoError(t, err)
				thief = made
			})
		}
		return nil
	})
	defer failpoint.Set(nil)
	big, err := e.Malloc(vmm.Request{Size: 70 * granule, Tag: "u"})
	if taken {
		require.Error(t, err)
		require.True(t, e.Records().Gated())
		require.Positive(t, tagStats(t, e, "t").PausedBytes)
		require.NoError(t, driver.MemRelease(thief))
		require.NoError(t, resume(e, eighty))
	} else {
		require.NoError(t, err)
		require.NoError(t, e.Free(big, false))
	}
	require.False(t, e.Records().Gated())
	for i, a := range all {
		if i%2 == 0 {
			requireFilled(t, a, size, uint64(i)+100)
		}
	}
}

// Each call of a compaction fails: what lives keeps its contents, and is active or can be resumed.
func TestSweepCompact(t *testing.T) { sweep(t, (*scene).compact, 20, fullSweep()) }

func (s *scene) compact() {
	vmm.HostOf(s.engine).SetCompactor(stopped{s.engine})
	allocate := func() {
		for i := range 8 {
			s.malloc(vmm.Request{Size: sceneGranularity, Tag: "a", Backup: vmm.BackupHost, Incremental: i%3 == 0})
			s.context, _ = s.driver.CtxGetCurrent()
		}
	}
	allocate()
	for _, through := range []bool{false, true} { // host memory
		s.pause("a")
		s.resume("a")
		s.free(func(i int) bool { return i%3 == 1 })
		for i, p := range s.all {
			p.fill(uint64(500 + i))
		}
		var hog cuda.Handle
		if through {
			s.do("hog", func() (err error) { hog, err = s.driver.MemCreate(s.sim.Stat("free:0"), 0); return err })
		}
		s.do("compact", func() error {
			_, err := s.engine.Compact(0)
			if err != nil && s.engine.Records().Gated() {
				err = errors.Join(err, resume(s.engine, s.options("a")))
			}
			return err
		})
		s.check("compacted", true)
		if hog != 0 {
			s.do("no hog", func() error { return s.driver.MemRelease(hog) })
		}
		allocate()
	}
	s.end()
}

// Where the driver refuses twice in a compaction, memory that nothing maps has the only copy of contents. Neither a
// resume with poison nor a pause loses it.
func TestCompactHoldsContents(t *testing.T) {
	for _, next := range []string{"resume", "pause"} {
		t.Run(next, func(t *testing.T) {
			const size = 4 * granule
			_, _, e := scaled(t)
			vmm.HostOf(e).SetCompactor(stopped{e})
			kinds := []vmm.Request{{Backup: vmm.BackupHost, Incremental: true}, {Backup: vmm.BackupSparse}, {}}
			var all []uintptr
			for i := range 9 {
				r := kinds[i%len(kinds)]
				r.Size, r.Tag = size, "t"
				all = append(all, malloc(t, e, r))
			}
			o := vmm.Options{ExtentBytes: eighty.ExtentBytes, SaveAll: true, RetainBackup: true, Poison: true}
			cycle(t, e, o)
			frees(t, e, all[4])
			all = append(all[:4], all[5:]...)
			for i, a := range all {
				fill(a, size, uint64(i))
			}
			maps := 0
			end := at("cuMemMap", func() error {
				if maps++; maps > 2 { // those of the copies
					return cuda.Unknown
				}
				return nil
			})
			defer end()
			_, err := e.Compact(0)
			require.Error(t, err)
			require.True(t, e.Records().Gated())
			if next == "pause" {
				require.Error(t, pause(e, o))
				end()
				require.NoError(t, pause(e, o))
			}
			end()
			require.NoError(t, resume(e, o))
			require.False(t, e.Records().Gated())
			requireAll(t, all, size)
		})
	}
}

// The same after a pause that the driver refuses, and does not let undo.
func TestRefusedPauseHoldsContents(t *testing.T) {
	_, _, e := scaled(t)
	all := filled(t, e, 2, vmm.Request{Size: granule, Tag: "t", Backup: vmm.BackupHost})
	cycle(t, e, vmm.Options{RetainBackup: true})
	for i, a := range all {
		fill(a, granule, uint64(i)+2)
	}
	unmapped := false
	failpoint.Set(func(call string) error {
		switch refused := unmapped; call {
		case "cuMemUnmap":
			unmapped = true
			fallthrough
		case "cuMemMap":
			if refused {
				return cuda.Unknown
			}
		}
		return nil
	})
	defer failpoint.Set(nil)
	o := vmm.Options{Discard: true, Poison: true}
	require.Error(t, pause(e, o))
	failpoint.Set(nil)
	require.NoError(t, resume(e, o))
	for i, a := range all {
		requireFilled(t, a, granule, uint64(i)+2)
	}
}
