package lifetime_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/lifetime"
)

func TestHandles(t *testing.T) {
	var handles lifetime.Handles
	for _, never := range []uintptr{0, 1, 0x12345} {
		_, err := handles.Pool(never)
		require.ErrorIs(t, err, lifetime.ErrNoPool)
		require.ErrorIs(t, handles.Destroy(never), lifetime.ErrNoPool)
	}
	first, second := newSource(), newSource()
	a, b := open(t, "naive", first), open(t, "naive", second)
	one, two := handles.Add(a), handles.Add(b)
	require.NotEqual(t, one, two)
	got, err := handles.Pool(one)
	require.NoError(t, err)
	require.Same(t, a, got)
	got, err = handles.Pool(two)
	require.NoError(t, err)
	require.Same(t, b, got)

	first.refuse = errors.New("not now")
	require.ErrorIs(t, handles.Destroy(one), first.refuse)
	got, err = handles.Pool(one)
	require.NoError(t, err, "it is there as before")
	require.Same(t, a, got)
	first.refuse = nil
	require.NoError(t, handles.Destroy(one))
	_, err = handles.Pool(one)
	require.ErrorIs(t, err, pool.ErrDestroyed)
	require.ErrorIs(t, handles.Destroy(one), pool.ErrDestroyed)
	require.NotEqual(t, one, handles.Add(a), "a number is not used again")
}
