package quota

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The limit counts what is being made, and a request waits until it, and those before it, are answered.
func TestReserve(t *testing.T) {
	d := New(nil, 0, 1, 100)
	d.Gain(40)
	first, err := d.Reserve(30, 80)
	require.NoError(t, err)
	require.EqualValues(t, 70, d.Promised())
	_, err = d.Reserve(11, 80)
	require.ErrorIs(t, err, ErrLimit)
	second, err := d.Reserve(11, 0)
	require.NoError(t, err)
	require.Equal(t, second, d.Last())

	d.Answered(second, 11)
	require.True(t, d.Waits(second), "the first has no answer")
	d.Gain(30)
	d.Answered(first, 30)
	require.False(t, d.Waits(second))
	require.EqualValues(t, 70, d.Promised())
	require.EqualValues(t, 70, d.Most)
	d.Has -= 70
	require.EqualValues(t, 70, d.Most)
}
