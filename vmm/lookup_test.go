package vmm_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/vmm"
)

// An export is noted once what was changing has changed, though other threads begin to change more before that.
func TestExportBesideBusyThreads(t *testing.T) {
	_, _, e := simulatedWith(t, 1, "64G")
	malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "t"})
	var unmaps atomic.Int64
	var done atomic.Bool
	failpoint.Set(func(call string) error {
		if call == "cuMemUnmap" { // it lasts until another has begun
			for n := unmaps.Add(1); unmaps.Load() == n && !done.Load(); {
				runtime.Gosched()
			}
		}
		return nil
	})
	defer failpoint.Set(nil)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for !done.Load() {
				a, err := e.Malloc(vmm.Request{Size: 2 * mib, Tag: "busy"})
				if err == nil {
					err = e.FreeIdle(a, false)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for unmaps.Load() < 2 {
		runtime.Gosched()
	}
	e.Shared().NoteExport(1, 0, 0)
	done.Store(true)
	workers.Wait()
	require.Zero(t, e.Shared().Exported())
}
