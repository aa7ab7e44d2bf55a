package small

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An allocation is found from each of its bytes, keeps its size, and can be marked.
func TestSlab(t *testing.T) {
	s := New(2 << 20)
	first, ok := s.Allocate(100)
	require.True(t, ok)
	second, ok := s.Allocate(70000)
	require.True(t, ok)
	require.Equal(t, []uintptr{0, 512}, []uintptr{first, second})
	require.Equal(t, 2, s.Live)
	require.EqualValues(t, 70100, s.Bytes)
	for _, offset := range []uintptr{second, second + 511, second + 69999, second + 70143} {
		begin, ok := s.Find(offset)
		require.True(t, ok)
		require.Equal(t, second, begin)
	}
	_, ok = s.Find(second + 70144)
	require.False(t, ok)
	require.EqualValues(t, 100, s.Size(first))
	require.EqualValues(t, 70000, s.Size(second))
	s.SetFreeing(second, true)
	require.True(t, s.Freeing(second))
	require.False(t, s.Freeing(first))
	s.SetFreeing(second, false)
	require.False(t, s.Freeing(second))
	s.Free(first)
	_, ok = s.Find(first)
	require.False(t, ok)
	_, ok = s.Allocate(2 << 20)
	require.False(t, ok)
	again, ok := s.Allocate(1)
	require.True(t, ok)
	require.Equal(t, first, again, "the lowest there is")
	require.NoError(t, s.Check())
}

// Each contradiction is found.
func TestCheck(t *testing.T) {
	s := New(2 << 20)
	_, _ = s.Allocate(100)
	for name, damage := range map[string]func() (repair func()){
		"bytes":   func() func() { s.Bytes++; return func() { s.Bytes-- } },
		"live":    func() func() { s.Live++; return func() { s.Live-- } },
		"used":    func() func() { s.groups[0].used ^= 2; return func() { s.groups[0].used ^= 2 } },
		"freeing": func() func() { s.groups[0].freeing ^= 2; return func() { s.groups[0].freeing ^= 2 } },
		"from":    func() func() { s.from++; return func() { s.from-- } },
	} {
		require.NoError(t, s.Check(), "before %s", name)
		repair := damage()
		require.Error(t, s.Check(), name)
		repair()
	}
}
