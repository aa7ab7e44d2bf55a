package bfc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBinBoundaries(t *testing.T) {
	for b := range binCount {
		low := uint64(granularity) << b
		require.Equal(t, b, binFor(low))
		require.Equal(t, b, binFor(low+255))
		require.Equal(t, b, binFor(2*low-1))
	}
	require.Equal(t, binCount-1, binFor(256<<20))
	require.Equal(t, binCount-1, binFor(1<<61))
}
