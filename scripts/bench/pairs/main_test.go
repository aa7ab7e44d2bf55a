package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool/kinds"
)

func TestMeasure(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, measure(&out, 1000, 500))
	measured := map[string]int{}
	for lines := json.NewDecoder(&out); lines.More(); {
		var p point
		require.NoError(t, lines.Decode(&p))
		require.Equal(t, 1000, p.Live)
		require.Positive(t, p.Pair)
		measured[p.Pool]++
	}
	for _, kind := range kinds.Names() {
		require.Equal(t, 3, measured[kind])
	}
	require.Equal(t, 1, measured[ofFloor], "not of the same 256 blocks")
}
