package vmm_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// versions are several versions of a set of several chunks, which a holder keeps. Each word of a version says which it
// is.
type versions struct {
	engine *vmm.Engine
	holder holder
	at     []uintptr // where the engine has the chunks
}

const chunksOfVersion = 3

// idOf is the number of a chunk.
func idOf(version uint64, chunk int) uint64 { return version*100 + uint64(chunk) }

func newVersions(t *testing.T, e *vmm.Engine, count uint64) *versions {
	t.Helper()
	v := &versions{engine: e, holder: holder{}}
	for version := range count {
		for chunk := range chunksOfVersion {
			descriptor, bytes, err := e.Shared().MakeForSet(0, uint64(1+chunk)*sceneGranularity)
			require.NoError(t, err)
			word := binary.NativeEndian.AppendUint64(nil, version)
			_, err = unix.Pwrite(descriptor, word, 0)
			require.NoError(t, err)
			v.holder[idOf(version, chunk)] = vmm.Export{Descriptor: descriptor, Extent: bytes, Size: bytes, Device: "GPU"}
		}
	}
	vmm.HostOf(e).SetProcesses(v.holder)
	e.Drain() // of what the engine loads aside, which has calls of the driver
	return v
}

// close ends all versions, which nothing has attached any longer.
func (v *versions) close() {
	for _, export := range v.holder {
		_ = unix.Close(export.Descriptor)
	}
}

func (v *versions) attach(version uint64) error {
	for chunk := len(v.at); chunk < chunksOfVersion; chunk++ {
		address, err := v.engine.Shared().Attach(0, idOf(version, chunk), []string{"a", "b", "b"}[chunk], true)
		if err != nil {
			return err
		}
		v.at = append(v.at, address)
	}
	return nil
}

func (v *versions) remap(version uint64) error {
	var all []vmm.Exchange
	for chunk, address := range v.at {
		all = append(all, vmm.Exchange{Address: address, ID: idOf(version, chunk)})
	}
	return v.engine.Shared().Remap(all, vmm.Remapping{})
}

// wrong says what is wrong where a version is expected in all chunks that are active; "" if nothing is.
func (v *versions) wrong(version uint64, allActive bool) string {
	for chunk, address := range v.at {
		switch {
		case v.engine.PausedAt(address):
			if allActive {
				return fmt.Sprintf("chunk %d is paused", chunk)
			}
		case !readable(address):
			return fmt.Sprintf("chunk %d is not mapped", chunk)
		case *wordAt(address) != version:
			return fmt.Sprintf("chunk %d has version %d, and not %d", chunk, *wordAt(address), version)
		}
	}
	return ""
}

func (v *versions) detach() error {
	for len(v.at) > 0 {
		last := len(v.at) - 1
		if err := v.engine.Shared().Close(v.at[last], false); err != nil {
			return err
		}
		v.at = v.at[:last]
	}
	return nil
}

// remapping is an engine with versions.
func remapping(t *testing.T, count uint64) (*cudasim.Sim, *vmm.Engine, *versions) {
	t.Helper()
	t.Setenv("CUDASIM_SHARED", fmt.Sprintf("remap-%d", os.Getpid()))
	t.Setenv("CUDASIM_GRANULARITY", fmt.Sprint(sceneGranularity))
	sim, _, e := simulated(t, 1)
	e.CheckInvariants(true)
	v := newVersions(t, e, count)
	t.Cleanup(v.close)
	require.NoError(t, v.attach(0))
	return sim, e, v
}

func TestRemap(t *testing.T) {
	sim, e, v := remapping(t, 3)
	at, handles := append([]uintptr{}, v.at...), sim.Stat("handles")
	for n := range uint64(1000) {
		version := (n + 1) % 3
		require.NoError(t, v.remap(version))
		require.Empty(t, v.wrong(version, true))
		require.Equal(t, handles, sim.Stat("handles"))
	}
	require.Equal(t, at, v.at)

	// What is paused at the remap comes back as what was put there.
	for _, tags := range [][]string{nil, {"a"}, {"b"}} {
		require.NoError(t, v.remap(0))
		require.NoError(t, pause(e, vmm.Options{Tags: tags}))
		require.NoError(t, v.remap(2))
		require.Empty(t, v.wrong(2, false))
		require.NoError(t, resume(e, vmm.Options{}))
		require.Empty(t, v.wrong(2, true))
	}
	require.NoError(t, v.detach())
	require.Zero(t, sim.Stat("mappings"))
}

func TestRemapIsRefused(t *testing.T) {
	_, e, v := remapping(t, 3)
	require.ErrorIs(t, v.engine.Shared().Remap([]vmm.Exchange{{Address: v.at[0] + 8, ID: 1}}, vmm.Remapping{}),
		vmm.ErrInvalidAddress)
	own, err := e.Malloc(vmm.Request{Size: 1, Tag: "a"})
	require.NoError(t, err)
	require.ErrorContains(t, v.engine.Shared().Remap([]vmm.Exchange{{Address: own, ID: 1}}, vmm.Remapping{}),
		"was not attached")
	require.NoError(t, e.Free(own, false))
	require.ErrorIs(t, v.engine.Shared().Remap(nil, vmm.Remapping{Capturing: true}), vmm.ErrCapturing)

	// Another size, and memory that is gone.
	require.ErrorContains(t, e.Shared().Remap([]vmm.Exchange{{Address: v.at[0], ID: idOf(1, 1)}}, vmm.Remapping{}),
		"does not fit")
	require.ErrorIs(t, v.remap(7), vmm.ErrShareGone)
	require.Empty(t, v.wrong(0, true))

	// The memory is attached twice, or what is to come is attached.
	twice, err := e.Shared().Attach(0, idOf(0, 1), "b", true)
	require.NoError(t, err)
	require.ErrorContains(t, v.remap(1), "attached more than once")
	require.NoError(t, e.Shared().Close(twice, false))
	comes, err := e.Shared().Attach(0, idOf(1, 2), "b", true)
	require.NoError(t, err)
	require.ErrorContains(t, v.remap(1), "attached elsewhere")
	require.NoError(t, e.Shared().Close(comes, false))

	// It was exported, before a pause, too.
	e.Shared().NoteExport(0, v.at[1], 1)
	require.Zero(t, e.Shared().Exported())
	require.NoError(t, pause(e, vmm.Options{}))
	require.NoError(t, resume(e, vmm.Options{}))
	require.ErrorContains(t, v.remap(1), "was exported")
	require.NoError(t, v.detach())
	require.NoError(t, v.attach(0))
	require.NoError(t, v.remap(1))
	require.Empty(t, v.wrong(1, true))
	require.NoError(t, v.detach())
}

// A remap that may not go on changes nothing, and waits for the devices outside of what maps memory.
func TestRemapInSteps(t *testing.T) {
	sim, e, v := remapping(t, 2)
	handles := sim.Stat("handles")
	all := []vmm.Exchange{{Address: v.at[0], ID: idOf(1, 0)}}
	refused := errors.New("refused")
	var steps []string
	step := func(name string, err error) error { steps = append(steps, name); return err }
	how := vmm.Remapping{Idle: func() error { return step("idle", refused) },
		Mapping: func(do func() error) error { return step("mapping", do()) }}
	require.ErrorIs(t, e.Shared().Remap(all, how), refused)
	how.Idle = func() error { return step("idle", nil) }
	how.Mapping = func(func() error) error { return step("refused", refused) }
	require.ErrorIs(t, e.Shared().Remap(all, how), refused)
	require.Empty(t, v.wrong(0, true))
	require.Equal(t, handles, sim.Stat("handles"))
	how.Mapping = func(do func() error) error { return step("mapping", do()) }
	require.NoError(t, e.Shared().Remap(all, how))
	require.Equal(t, []string{"idle", "idle", "refused", "idle", "mapping"}, steps)
	require.Equal(t, uint64(1), *wordAt(v.at[0]))
	require.NoError(t, v.detach())
}

// While the engine asks for the memory that comes, and while a resume does, others pause, resume, attach and close.
func TestRemapAmongOthers(t *testing.T) {
	_, e, v := remapping(t, 3)
	var during func()
	vmm.HostOf(e).SetProcesses(&asked{v.holder, func() {
		if call := during; call != nil {
			during = nil
			call()
		}
	}})

	// A pause, which leaves what was put there.
	during = func() { require.NoError(t, pause(e, vmm.Options{})) }
	require.NoError(t, v.remap(1))
	require.NoError(t, resume(e, vmm.Options{}))
	require.Empty(t, v.wrong(1, true))

	// A remap, while a resume has asked for what was there before.
	require.NoError(t, pause(e, vmm.Options{}))
	during = func() { require.NoError(t, v.remap(2)) }
	require.NoError(t, resume(e, vmm.Options{}))
	require.Empty(t, v.wrong(2, true))

	// A close.
	during = func() { require.NoError(t, e.Shared().Close(v.at[2], false)) }
	require.ErrorIs(t, v.remap(0), vmm.ErrInvalidAddress)
	v.at = v.at[:2]
	require.Empty(t, v.wrong(2, true))
	require.NoError(t, v.attach(2))
	require.NoError(t, v.detach())
}

func TestRemapByManyThreads(t *testing.T) {
	_, e, v := remapping(t, 4)
	var running sync.WaitGroup
	for thread := range uint64(3) {
		running.Go(func() {
			for n := range uint64(100) {
				if err := v.remap((thread + n) % 4); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var over atomic.Bool
	var pauses sync.WaitGroup
	pauses.Go(func() {
		for !over.Load() {
			if err := pause(e, vmm.Options{}); err != nil {
				t.Error(err)
			}
			if err := resume(e, vmm.Options{}); err != nil {
				t.Error(err)
			}
		}
	})
	running.Wait()
	over.Store(true)
	pauses.Wait()
	require.NoError(t, resume(e, vmm.Options{}))
	require.Empty(t, v.wrong(*wordAt(v.at[0]), true), "one version in all chunks")
	require.NoError(t, v.detach())
}

// An error of a call, and of each call that undoes the remap after it.
func TestRemapThatIsNotUndone(t *testing.T) {
	for _, refused := range []string{"cuMemUnmap", "cuMemMap", "cuMemSetAccess"} {
		for nth := 1; nth <= chunksOfVersion; nth++ {
			t.Run(fmt.Sprint(refused, nth), func(t *testing.T) {
				sim, e, v := remapping(t, 2)
				handles, calls, failed := sim.Stat("handles"), 0, false
				failpoint.Set(func(call string) error {
					if call == refused {
						calls++
					}
					failed = failed || calls == nth
					if failed && (call == "cuMemUnmap" || call == "cuMemMap" || call == "cuMemSetAccess") {
						return cuda.Unknown
					}
					return nil
				})
				require.ErrorIs(t, v.remap(1), cuda.Unknown)
				failpoint.Set(nil)
				require.Empty(t, v.wrong(0, false))
				require.NoError(t, resume(e, vmm.Options{}))
				require.Empty(t, v.wrong(0, true), "as it was before the remap")
				require.NoError(t, v.remap(1))
				require.Empty(t, v.wrong(1, true))
				e.Drain()
				require.Equal(t, handles, sim.Stat("handles"))
				require.NoError(t, v.detach())
			})
		}
	}
}

// versions is a scenario of memory that is remapped, with one driver call that fails at each place in turn. After an
// error all active memory has one version, and what is paused comes back as that.
func (s *scene) versions() {
	failpoint.Set(nil) // the makers are other processes
	v := newVersions(s.t, s.engine, 3)
	defer v.close()
	failpoint.Set(s.faults.err)
	s.do("attach", func() error { return v.attach(0) })
	s.context, _ = s.driver.CtxGetCurrent()
	now := uint64(0)
	remap := func(version uint64) {
		s.do("remap", func() error {
			err := v.remap(version)
			if err == nil {
				now = version
			}
			if wrong := v.wrong(now, false); wrong != "" {
				s.fail("after a remap to %d (%v): %s", version, err, wrong)
			}
			return err
		})
		s.do("resume", func() error { return resume(s.engine, s.options("")) })
		if wrong := v.wrong(version, true); wrong != "" {
			s.fail("remapped to %d: %s", version, wrong)
		}
	}
	remap(1)
	remap(2)
	s.do("pause", func() error { return pause(s.engine, s.options("b")) })
	remap(1)
	remap(0)
	s.do("detach", v.detach)
	v.close()
	s.end()
}

// Wherever a remap fails, all of the memory is as it was.
func TestSweepRemap(t *testing.T) {
	t.Setenv("CUDASIM_SHARED", fmt.Sprint("sweep-remap-", os.Getpid()))
	sweep(t, (*scene).versions, 20, true)
}
