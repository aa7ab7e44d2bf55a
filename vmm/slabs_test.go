package vmm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/cuda"
)

// Small allocations that come and go at random find the room that others have left, whatever part of a granule they
// take.
func TestSlabsAreUsedAgain(t *testing.T) {
	for _, size := range []uint64{64 * kib, 132 * kib, 200 * kib, 500 * kib} {
		t.Run(fmt.Sprint(size/kib), func(t *testing.T) {
			_, _, e := simulatedWith(t, 1, "64G")
			random := rand.New(rand.NewPCG(1, 2))
			const live = 300
			r := vmm.Request{Size: size, Tag: "t"}
			all := mallocs(t, e, live, r)
			first := tagStats(t, e, "t").PhysicalBytes
			for range 20 * live {
				i := random.IntN(live)
				require.NoError(t, e.FreeIdle(all[i], false))
				a, err := e.Malloc(r)
				require.NoError(t, err)
				all[i] = a
			}
			require.LessOrEqual(t, tagStats(t, e, "t").PhysicalBytes, first+first/3)
		})
	}
	t.Run("mixed", func(t *testing.T) {
		_, _, e := simulatedWith(t, 1, "64G")
		random := rand.New(rand.NewPCG(1, 2))
		sizes := make([]uint64, 300)
		all := make([]uintptr, len(sizes))
		for n := range 20 * len(sizes) {
			i := random.IntN(len(sizes))
			if all[i] != 0 {
				require.NoError(t, e.FreeIdle(all[i], false))
			}
			sizes[i] = uint64(1+random.IntN(1000)) * kib
			a, err := e.Malloc(vmm.Request{Size: sizes[i], Tag: "t"})
			require.NoError(t, err)
			if all[i] = a; n%1000 == 999 {
				held := tagStats(t, e, "t")
				require.LessOrEqual(t, held.PhysicalBytes, held.LiveBytes*7/4)
			}
		}
		frees(t, e, all...)
	})
}

var whilePaused = []vmm.Request{
	{Tag: "t", Backup: vmm.BackupHost},
	{Tag: "t", Backup: vmm.BackupHost, Incremental: true},
	{Tag: "t", Backup: vmm.BackupDisk},
	{Tag: "t"},
}

// Small allocations that are made while their tag is paused share granules with all others, however many pauses they
// are spread over.
func TestSmallAllocationsWhilePausedShareGranules(t *testing.T) {
	for _, r := range whilePaused {
		sim, _, e := simulatedWith(t, 1, "1G")
		e.CheckInvariants(true)
		o := vmm.Options{DiskDir: t.TempDir(), ExtentBytes: 16 * mib}
		r.Size = 8 * kib
		all := filled(t, e, 36, r)
		for n := range 2 * len(all) {
			require.NoError(t, pause(e, o))
			i := n % len(all)
			frees(t, e, all[i])
			all[i] = malloc(t, e, r)
			fill(all[i], int(r.Size), uint64(i))
			require.EqualValues(t, 2*mib, sim.Stat("handle_bytes"), "what is paused is not there but for one granule")
			require.NoError(t, resume(e, o))
			for i, a := range all {
				if r.Backup != vmm.BackupNone {
					requireFilled(t, a, int(r.Size), uint64(i))
				}
			}
		}
		require.EqualValues(t, 2*mib, sim.Stat("handle_bytes"))
		frees(t, e, all...)
	}
}

// What a pause has kept of a granule that an allocation brings back can be read until the tag is resumed, and is gone
// then.
func TestBackupOfAWokenSlab(t *testing.T) {
	for _, retain := range []bool{false, true} {
		t.Run(fmt.Sprint(retain), func(t *testing.T) {
			_, _, e := simulatedWith(t, 1, "1G")
			e.CheckInvariants(true)
			r := vmm.Request{Tag: "t", Size: 8 * kib, Backup: vmm.BackupHost}
			a := filled(t, e, 1, r)[0]
			large := malloc(t, e, vmm.Request{Tag: "t", Size: 2 * mib, Backup: vmm.BackupHost})
			require.NoError(t, pause(e, vmm.Options{}))
			malloc(t, e, r)
			require.False(t, e.PausedAt(a))
			require.True(t, e.PausedAt(large))
			copied, err := e.BackupPointer(a, r.Size, false)
			require.NoError(t, err)
			require.Equal(t, bytesAt(a, int(r.Size)), bytesAt(copied, int(r.Size)))
			require.NoError(t, resume(e, vmm.Options{RetainBackup: retain, Tags: []string{"others"}}))
			require.NotZero(t, tagStats(t, e, "t").HostBytes)
			require.NoError(t, resume(e, vmm.Options{RetainBackup: retain}))
			copied, err = e.BackupPointer(a, r.Size, false)
			require.NoError(t, err)
			require.Equal(t, retain, copied != 0)
			require.Equal(t, retain, tagStats(t, e, "t").HostBytes > 0)
		})
	}
}

// Where a granule cannot be brought back, an allocation gets one of its own, and what is paused stays so: when a call
// fails, when another thread pauses or resumes, in a capture, and when the gate is closed.
func TestSmallAllocationsWhoseSlabStaysPaused(t *testing.T) {
	r := vmm.Request{Tag: "t", Size: 8 * kib, Backup: vmm.BackupHost}
	for name, allocate := range map[string]func(*vmm.Engine) (uintptr, error){
		"refused": func(e *vmm.Engine) (uintptr, error) {
			calls := 0
			defer at("cuMemMap", func() error {
				if calls++; calls == 1 {
					return cuda.Unknown
				}
				return nil
			})()
			return e.Malloc(r)
		},
		"capturing": func(e *vmm.Engine) (uintptr, error) {
			r := r
			r.Capturing = true
			return e.Malloc(r)
		},
		"another": func(e *vmm.Engine) (address uintptr, err error) {
			finish := e.Prepare(nil)
			defer func() { _ = finish() }()
			return e.Malloc(r)
		},
		"gated": func(e *vmm.Engine) (address uintptr, err error) { return e.Malloc(r) },
	} {
		t.Run(name, func(t *testing.T) {
			sim, _, e := simulatedWith(t, 1, "1G")
			e.CheckInvariants(true)
			a := filled(t, e, 1, r)[0]
			require.NoError(t, pause(e, vmm.Options{Gated: name == "gated"}))
			b, err := allocate(e)
			require.NoError(t, err)
			require.True(t, e.PausedAt(a))
			require.EqualValues(t, 2*mib, sim.Stat("handle_bytes"))
			fill(b, int(r.Size), 7)
			require.NoError(t, resume(e, vmm.Options{}))
			requireFilled(t, a, int(r.Size), 0)
			requireFilled(t, b, int(r.Size), 7)
			frees(t, e, a, b)
		})
	}
}
