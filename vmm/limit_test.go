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

// At a limit, or at the margin, an allocation waits for memory that is on its way, as where the device is full.
func TestALimitWaitsForFrees(t *testing.T) {
	for how, r := range map[string]vmm.Request{
		"device": {Size: 700 * mib, Tag: "t"},
		"limit":  {Size: 300 * mib, Tag: "t", Limit: 400 * mib},
		"margin": {Size: 700 * mib, Tag: "t", Margin: 100 * mib},
	} {
		t.Run(how, func(t *testing.T) {
			sim, _, engine := simulated(t, 1)
			a, err := engine.Malloc(r)
			require.NoError(t, err)
			var asked atomic.Int64
			failpoint.Set(func(call string) error {
				if call == "cuEventQuery" && asked.Add(1) < 5 {
					return cuda.NotReady
				}
				return nil
			})
			defer failpoint.Set(nil)
			require.NoError(t, engine.FreeAfter(a, 0))
			b, err := engine.Malloc(r)
			require.NoError(t, err)
			_, err = engine.Malloc(r)
			require.Equal(t, int(cuda.OutOfMemory), cuda.Code(err))
			require.EqualValues(t, 1, sim.Stat("handles"))
			frees(t, engine, b)
		})
	}
}

// Threads that allocate at once do not exceed the limit, nor what a mapping of the program's own takes.
func TestALimitHoldsForAllThreads(t *testing.T) {
	_, _, engine := simulatedWith(t, 1, "16G")
	const limit, size = 1000 * mib, 100 * mib
	r := vmm.Request{Size: size, Tag: "t", Limit: limit}
	failpoint.Set(func(call string) error {
		if call == "cuMemCreate" {
			time.Sleep(time.Millisecond) // a driver that clears the memory
		}
		return nil
	})
	defer failpoint.Set(nil)
	var mu sync.Mutex
	var all []uintptr
	var handles []cuda.Handle
	var workers sync.WaitGroup
	for i := range 16 {
		workers.Go(func() {
			for range 3 {
				if i%4 == 0 {
					if handle, err := engine.UserMapped().Create(r, cuda.PinnedOn(0)); err == nil {
						mu.Lock()
						handles = append(handles, handle)
						mu.Unlock()
					}
					continue
				}
				if a, err := engine.Malloc(r); err == nil {
					mu.Lock()
					all = append(all, a)
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	require.Len(t, append(make([]struct{}, len(all)), make([]struct{}, len(handles))...), limit/size)
	frees(t, engine, all...)
	for _, handle := range handles {
		require.NoError(t, engine.UserMapped().Release(handle))
	}
	for range limit / size { // all of it is back
		malloc(t, engine, r)
	}
}
