package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each registration goes with the last contents in it.
func TestRegistrationsGoWithTheirContents(t *testing.T) {
	sim, driver, jobs := simulate(t, 1, "2G")
	store := NewPrivate(driver)
	spans := spans(t, driver, 0, 2*mib, 34*mib, 2*mib, 66*mib)
	kept, err := store.Save(jobs[0], itemsFor(spans, nil, -1))
	require.NoError(t, err)
	require.EqualValues(t, 104*mib, sim.Stat("registered_bytes"))
	discardAll(kept[1:3])
	kept[1].Await(time.Time{})
	kept[2].Await(time.Time{})
	driver.Reclaim.Drain()
	require.EqualValues(t, (104-36)*mib, sim.Stat("registered_bytes"))
	kept[3].Discard()
	kept[3].Await(time.Time{})
	require.EqualValues(t, 2*mib, sim.Stat("registered_bytes"))
	require.False(t, Scattered(kept[0]), "it has all of one")
	kept[0].Discard()
	kept[0].Await(time.Time{})
	require.Zero(t, sim.Stat("registered_bytes"))
}

// A save of no part pins, and copies nothing.
func TestHostPrepare(t *testing.T) {
	sim, driver, jobs := simulate(t, 1, "2G")
	store := NewPrivate(driver)
	spans := spans(t, driver, 0, 2*mib, 4*mib)
	items := itemsFor(spans, nil, -1)
	for i := range items {
		items[i].Parts = nil
	}
	kept, err := store.Save(jobs[0], items)
	require.NoError(t, err)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	require.Zero(t, sim.Stat("calls:cuMemcpyDtoHAsync_v2"))
	contents, err := store.Save(jobs[0], itemsFor(spans, kept, -1))
	require.NoError(t, err)
	require.Equal(t, kept, contents)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	discardAll(kept)
	driver.Reclaim.Drain()
	require.Zero(t, sim.Stat("registered_bytes"))
}
