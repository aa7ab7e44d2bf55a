package vmm_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
)

// A transition lets others have the lock between any two segments: what they allocate and free in the same extents then
// is wholly in the transition, or wholly out of it.
func TestOthersDuringTransitions(t *testing.T) {
	_, _, e := scaled(t)
	vmm.HostOf(e).SetCompactor(stopped{e})
	var warned sync.Map
	vmm.HostOf(e).SetWarn(func(line string) { warned.Store(line, true) })
	request := func(i int) vmm.Request {
		kinds := []vmm.BackupKind{vmm.BackupHost, vmm.BackupSparse, vmm.BackupNone}
		return vmm.Request{Size: []uint64{granule, 2 * granule, 3 * granule, 700}[i%4], Tag: "t", Backup: kinds[i%3]}
	}
	var kept []uintptr
	for i := range 40 {
		kept = append(kept, malloc(t, e, request(i)))
	}
	cycle(t, e, eighty)
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for worker := range 3 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 0))
			var mine []uintptr
			for over := false; ; {
				select {
				case <-stop:
					over = true
				default:
				}
				if over && len(mine) == 0 {
					return
				}
				if n := len(mine); over || n > 20 || n > 0 && random.IntN(2) == 0 {
					at := random.IntN(n)
					if err := e.FreeIdle(mine[at], false); err != nil {
						t.Error(err)
					}
					mine[at] = mine[n-1]
					mine = mine[:n-1]
					continue
				}
				a, err := e.Malloc(request(random.IntN(12)))
				if err != nil {
					t.Error(err)
					return
				}
				mine = append(mine, a)
			}
		})
	}
	for i := range 16 {
		o := eighty
		o.Gated = i%2 == 0
		require.NoError(t, pause(e, o))
		require.NoError(t, resume(e, o))
		if i%4 == 0 {
			_, err := e.Compact(0)
			require.NoError(t, err)
		}
	}
	close(stop)
	workers.Wait()
	frees(t, e, kept...)
	warned.Range(func(line, _ any) bool { t.Error(line); return true })
}
