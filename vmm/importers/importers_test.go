package importers

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An importer is listed until it gives the memory back, ends, or the memory goes.
func TestImporters(t *testing.T) {
	var r Record
	r.Returned(1, 10, 100)
	require.Empty(t, r.Left([]uint64{1}, func(Importer) bool { return false }))
	r.Add(1, Importer{PID: 10, Start: 5, Number: 100})
	r.Add(1, Importer{PID: 10, Start: 5, Number: 101})
	r.Add(1, Importer{PID: 11, Start: 6, Number: 102})
	r.Add(2, Importer{PID: 12, Start: 7, Number: 103})
	require.ElementsMatch(t, []uint64{1, 2}, r.Names())

	asked := 0
	ended := func(i Importer) bool {
		asked++
		return i.PID == 11
	}
	require.Equal(t, []int{10, 12}, r.Left([]uint64{1, 2}, ended))
	require.Equal(t, 3, asked, "each process is asked about once")
	require.Equal(t, []int{10}, r.Left([]uint64{1}, func(Importer) bool { return false }))

	r.Returned(1, 10, 100)
	require.True(t, r.Has(1))
	r.Returned(1, 10, 101)
	require.False(t, r.Has(1))
	r.Forget(2)
	require.Empty(t, r.Names())
}
