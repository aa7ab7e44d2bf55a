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

func TestAll(t *testing.T) {
	wrong := errors.New("wrong")
	ended := make(chan int, 3)
	err := guard.All([]int{1, 2, 3}, func(n int) error {
		ended <- n
		if n == 2 {
			return wrong
		}
		return nil
	})
	require.ErrorIs(t, err, wrong)
	require.Len(t, ended, 3)
	var panicked *guard.Panic
	require.ErrorAs(t, guard.All([]int{1}, func(int) error { panic("so") }), &panicked)
	require.NoError(t, guard.All(nil, func(int) error { return wrong }))
}
