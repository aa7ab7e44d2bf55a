package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

func TestPairsKeepThePoolFull(t *testing.T) {
	for _, kind := range kinds.Names() {
		for _, keep := range []bool{false, true} {
			p, err := kinds.New(kind, &pool.Endless{}, nil)
			require.NoError(t, err)
			live, err := fill(p, 300, 20, keep)
			require.NoError(t, err)
			before := p.Stats()
			ns, err := live.time(1000)
			require.NoError(t, err)
			require.Positive(t, ns)
			after := p.Stats()
			require.EqualValues(t, 300, after.Blocks, kind)
			require.EqualValues(t, 1000, after.Mallocs-before.Mallocs, kind)
			require.EqualValues(t, 1000, after.Frees-before.Frees, kind)
			require.Equal(t, keep, before.Requested == after.Requested, kind)
		}
	}
}

// TestTheFloorHandsOutEachBlockOnce: it has as many free as it says, and touches those that it should.
func TestTheFloorHandsOutEachBlockOnce(t *testing.T) {
	const count = 1000
	f := newFloor(count)
	live := map[uintptr]bool{}
	var addresses []uintptr
	malloc := func(i int) {
		b, err := f.Malloc(512, 0)
		require.NoError(t, err)
		require.False(t, live[b.Address])
		live[b.Address] = true
		addresses[i] = b.Address
	}
	addresses = make([]uintptr, count)
	for i := range addresses {
		malloc(i)
	}
	seen := map[uintptr]bool{}
	for step := range 20 * count {
		i := step * 7 % count
		require.NoError(t, f.Free(addresses[i]))
		delete(live, addresses[i])
		malloc(i)
		seen[addresses[i]] = true
	}
	require.Len(t, live, count)
	require.Greater(t, len(seen), count*6/5, "nearly all blocks come by")
}

func TestAPoolThatRefuses(t *testing.T) {
	p, err := kinds.New("freelist", &pool.Endless{}, nil)
	require.NoError(t, err)
	live, err := fill(p, 10, 10, false)
	require.NoError(t, err)
	require.NoError(t, p.Destroy())
	_, err = live.time(1)
	require.Error(t, err)
}
