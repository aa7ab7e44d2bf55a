package vmm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// mappedShare is an engine with shared memory of its own, and another that may import it, as in two processes.
type mappedShare struct {
	*mapper
	importer *vmm.Engine
	handle   cuda.Handle
	share    vmm.Share
}

func newMappedShare(t *testing.T) *mappedShare {
	t.Helper()
	_, driver, engine := simulated(t, 2)
	importer := beside(t, driver)
	meet(engine, importer)
	importer.Shareable(false) // it need not share
	m := newMapper(t, driver, engine, weights)
	s := &mappedShare{mapper: m, importer: importer}
	var err error
	s.handle, err = engine.UserMapped().Create(m.request, cuda.PinnedOn(0).AsFile())
	require.NoError(t, err)
	require.NoError(t, engine.UserMapped().Map(m.at(0), chunk, 0, s.handle, 0))
	m.open(0, 1)
	fill(m.at(0), chunk, 1)
	s.share, _, err = engine.UserMapped().Name(s.handle)
	require.NoError(t, err)
	require.Zero(t, s.share.PID)
	return s
}

func (s *mappedShare) end() {
	s.unmap(0, 1, s.handle)
	s.mapper.end()
}

var briefly = vmm.Options{Importers: 100 * time.Millisecond}

// opened imports the share, and maps it as chunk 2 with access.
func (s *mappedShare) opened() cuda.Handle {
	handle, err := s.importer.UserMapped().Import(0, s.share)
	require.NoError(s.t, err)
	require.NoError(s.t, s.importer.UserMapped().Map(s.at(2), chunk, 0, handle, 0))
	require.NoError(s.t, s.importer.UserMapped().SetAccess(s.at(2), chunk, onDevice0))
	return handle
}

// closed unmaps chunk 2, and releases its handle.
func (s *mappedShare) closed(handle cuda.Handle) {
	require.NoError(s.t, s.importer.UserMapped().Unmap(s.at(2), chunk))
	require.NoError(s.t, s.importer.UserMapped().Release(handle))
}

// An import has memory whether it is mapped or not; a pause gives that up, and a resume takes it again.
func TestImportedHandleThatIsNotMapped(t *testing.T) {
	s := newMappedShare(t)
	handle, err := s.importer.UserMapped().Import(0, s.share)
	require.NoError(t, err)
	require.ErrorIs(t, pause(s.engine, briefly), vmm.ErrImported)
	require.NoError(t, pause(s.importer, name("weights")))
	require.NoError(t, pause(s.engine, briefly))

	// Mapped and given access while it is paused.
	require.NoError(t, s.importer.UserMapped().Map(s.at(2), chunk, 0, handle, 0))
	require.NoError(t, s.importer.UserMapped().SetAccess(s.at(2), chunk, onDevice0))
	require.ErrorIs(t, resume(s.importer, briefly), vmm.ErrSharePaused)
	require.NoError(t, resume(s.engine, briefly))
	require.NoError(t, resume(s.importer, briefly))
	requireFilled(t, s.at(2), chunk, 1)

	// Unmapped while it is paused; and mapped elsewhere when it is back.
	require.NoError(t, pause(s.importer, vmm.Options{}))
	require.NoError(t, s.importer.UserMapped().Unmap(s.at(2), chunk))
	cycle(t, s.engine, briefly)
	require.NoError(t, resume(s.importer, briefly))
	require.EqualValues(t, chunk, tagStats(t, s.importer, "weights").ImportedBytes)
	require.NoError(t, s.importer.UserMapped().Map(s.at(3), chunk, 0, handle, 0))
	require.NoError(t, s.importer.UserMapped().SetAccess(s.at(3), chunk, onDevice0))
	requireFilled(t, s.at(3), chunk, 1)
	require.NoError(t, s.importer.UserMapped().Unmap(s.at(3), chunk))
	require.NoError(t, s.importer.UserMapped().Release(handle))
	require.NoError(t, pause(s.engine, briefly))
	require.NoError(t, resume(s.engine, vmm.Options{}))
	s.end()
}

// Mapped without access: so it comes back.
func TestImportedHandleWithoutAccess(t *testing.T) {
	s := newMappedShare(t)
	handle, err := s.importer.UserMapped().Import(0, s.share)
	require.NoError(t, err)
	require.NoError(t, s.importer.UserMapped().Map(s.at(2), chunk, 0, handle, 0))
	for range 2 {
		require.NoError(t, pause(s.importer, vmm.Options{}))
		cycle(t, s.engine, briefly)
		require.NoError(t, resume(s.importer, briefly))
	}
	require.NoError(t, s.importer.UserMapped().SetAccess(s.at(2), chunk, onDevice0))
	requireFilled(t, s.at(2), chunk, 1)
	// The mapping keeps the memory, and another import has another handle.
	second, err := s.importer.UserMapped().Import(1, s.share)
	require.NoError(t, err)
	require.NotEqual(t, handle, second)
	require.NoError(t, s.importer.UserMapped().Release(handle))
	require.NoError(t, s.importer.UserMapped().Release(second))
	require.ErrorIs(t, s.importer.UserMapped().Release(second), cuda.InvalidValue)
	require.ErrorIs(t, pause(s.engine, briefly), vmm.ErrImported)
	require.NoError(t, s.importer.UserMapped().Unmap(s.at(2), chunk))
	cycle(t, s.engine, briefly)
	s.end()
}

// What only the process that made the memory may do with a handle, and what becomes of memory that is freed.
func TestSharedHandles(t *testing.T) {
	s := newMappedShare(t)
	handle, err := s.importer.UserMapped().Import(0, s.share)
	require.NoError(t, err)
	again, size, err := s.importer.UserMapped().Name(handle)
	require.NoError(t, err)
	require.Equal(t, s.share, again)
	require.EqualValues(t, chunk, size)
	_, err = s.importer.UserMapped().Pin(handle)
	require.ErrorIs(t, err, cuda.NotSupported)
	require.ErrorIs(t, s.importer.UserMapped().Use(handle, true, nil), cuda.NotSupported)
	require.NoError(t, s.importer.UserMapped().Use(handle, false, func(cuda.Handle) error { return nil }))

	own, err := s.engine.UserMapped().RetainNamed(s.share.ID)
	require.NoError(t, err)
	require.Equal(t, s.handle, own)
	require.NoError(t, s.engine.UserMapped().Release(own))
	private, err := s.engine.UserMapped().Create(s.request, cuda.PinnedOn(0))
	require.NoError(t, err)
	_, _, err = s.engine.UserMapped().Name(private)
	require.ErrorIs(t, err, vmm.ErrNotShareable)
	require.NoError(t, s.engine.UserMapped().Release(private))
	_, _, err = s.engine.UserMapped().Name(12345)
	require.ErrorIs(t, err, vmm.ErrNotOurs)

	s.end()
	_, err = s.engine.UserMapped().RetainNamed(s.share.ID)
	require.ErrorIs(t, err, vmm.ErrShareGone)
	_, err = s.importer.UserMapped().Import(0, s.share)
	require.ErrorIs(t, err, vmm.ErrShareGone)
	require.NoError(t, pause(s.importer, vmm.Options{}))
	err = resume(s.importer, vmm.Options{})
	require.ErrorIs(t, err, vmm.ErrShareGone)
	require.ErrorContains(t, err, "cuMemRelease")
	require.NoError(t, s.importer.UserMapped().Release(handle))
	require.NoError(t, resume(s.importer, vmm.Options{}))
}

// A device is reset, which takes the import too.
func TestImportedHandleAndReset(t *testing.T) {
	s := newMappedShare(t)
	handle := s.opened()
	s.importer.Reset(0)
	cycle(t, s.engine, briefly)
	require.NoError(t, resume(s.importer, briefly))
	s.closed(handle)
	s.end()
}

// Every driver call of an import's life fails once: it is made again, nothing is left, and the memory can be paused.
func TestImportedHandleAndFailures(t *testing.T) {
	for _, function := range []string{"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap",
		"cuMemSetAccess", "cuMemUnmap", "cuMemRelease"} {
		t.Run(function, func(t *testing.T) {
			s := newMappedShare(t)
			sim, err := cudasim.Load()
			require.NoError(t, err)
			failed := 0
			do := func(call func() error) {
				for call() != nil {
					failed++
					require.Less(t, failed, 3)
				}
			}
			for nth := 1; nth <= 2; nth++ {
				before, fired := sim.FailuresFired(), 0
				sim.Fail(function, nth, int(cuda.Unknown))
				var handle cuda.Handle
				do(func() (err error) { handle, err = s.importer.UserMapped().Import(0, s.share); return err })
				do(func() error { return s.importer.UserMapped().Map(s.at(2), chunk, 0, handle, 0) })
				do(func() error { return s.importer.UserMapped().SetAccess(s.at(2), chunk, onDevice0) })
				requireFilled(t, s.at(2), chunk, 1)
				do(func() error { return s.importer.UserMapped().Unmap(s.at(2), chunk) })
				do(func() error { return s.importer.UserMapped().Release(handle) })
				fired = int(sim.FailuresFired() - before)
				sim.ClearFailures()
				require.Equal(t, nth == 1, fired == 1, "%s is called once", function)
				require.Equal(t, fired, failed)
				failed = 0
				s.importer.Drain()
				require.NoError(t, pause(s.engine, briefly))
				require.Zero(t, sim.Stat("handles"))
				require.NoError(t, resume(s.engine, briefly))
				requireFilled(t, s.at(0), chunk, 1)
			}
			s.end()
		})
	}
}

// Memory that is gone for good does not keep a resume from waiting for the rest.
func TestImportedHandleBesideOneThatIsGone(t *testing.T) {
	s := newMappedShare(t)
	freed := s.create(1)
	s.open(1, 2)
	_, _, err := s.engine.UserMapped().Name(freed)
	require.ErrorIs(t, err, vmm.ErrNotShareable)
	s.unmap(1, 2, freed)
	freed, err = s.engine.UserMapped().Create(s.request, cuda.PinnedOn(0).AsFile())
	require.NoError(t, err)
	share, _, err := s.engine.UserMapped().Name(freed)
	require.NoError(t, err)
	gone, err := s.importer.UserMapped().Import(0, share)
	require.NoError(t, err)
	handle := s.opened()
	require.NoError(t, pause(s.importer, vmm.Options{}))
	require.NoError(t, pause(s.engine, briefly))
	require.NoError(t, s.engine.UserMapped().Release(freed))
	done := make(chan error)
	go func() { done <- resume(s.importer, vmm.Options{Importers: time.Minute}) }()
	select {
	case err := <-done:
		require.Fail(t, "it has not waited", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, resume(s.engine, briefly))
	require.ErrorIs(t, <-done, vmm.ErrShareGone)
	requireFilled(t, s.at(2), chunk, 1)
	require.NoError(t, s.importer.UserMapped().Release(gone))
	s.closed(handle)
	s.importer.Drain()
	s.end()
}
