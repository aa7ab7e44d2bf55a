package guard_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/guard"
)

func TestCall(t *testing.T) {
	require.NoError(t, guard.Call(func() error { return nil }))
	own := errors.New("own")
	require.Equal(t, own, guard.Call(func() error { return own }))
	var nothing []int
	var panicked *guard.Panic
	require.ErrorAs(t, guard.Call(func() error { _ = nothing[len(nothing)]; return nil }), &panicked)
	require.ErrorContains(t, panicked, "index out of range")
	require.Contains(t, string(panicked.Stack), "TestCall")
}
