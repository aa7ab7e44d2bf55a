package kinds_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// TestRefusalsGiveAdviceThatFits: when a pool has no room, its error says once what can be done, and gives sizes in
// readable form.
func TestRefusalsGiveAdviceThatFits(t *testing.T) {
	for _, c := range []struct {
		kind, options string
		size          uint64
		says          []string
	}{
		{"naive", "", 1 << 30,
			[]string{"naive pool: 1.00 GiB, with 0 bytes live", "a segment of 1.00 GiB", "ask for less"}},
		{"freelist", "buffer=64MiB", 100 << 20,
			[]string{"100.00 MiB", "a buffer has 64.00 MiB; give a larger buffer="}},
		{"freelist", "", 100 << 20, []string{"a segment of 5.00 GiB", "give a smaller buffer="}},
		{"buddy", "capacity=64MiB", 100 << 20, []string{"the largest block has 64.00 MiB; give a larger capacity="}},
		{"buddy", "", 1000, []string{"1000 bytes", "a segment of 4.00 GiB", "give a smaller capacity="}},
		{"slab", "", 600 << 20, []string{"slab pool: 600.00 MiB", "a segment of 600.00 MiB", "ask for less"}},
		{"caching", "", 1 << 30, []string{"CUDA out of memory. Tried to allocate 1.00 GiB", "Free something"}},
		{"caching", "total=512MiB", 1 << 30, []string{"512.00 MiB total capacity", "Ask for less"}},
		{"caching", "total=512MiB,memory_fraction=0.1", 100 << 20,
			[]string{"51.20 MiB allowed", "raise the memory fraction"}},
		{"caching", "", 1<<60 + 1, []string{"CUDA out of memory", "more than 1EB", "ask for less"}},
		{"bfc", "memory_limit=64MiB", 100 << 20, []string{"memory_limit is 64.00 MiB; raise it"}},
		{"bfc", "", 1 << 30, []string{"bfc pool: 1.00 GiB", "no room for a region", "ask for less"}},
		{"paddle", "", 1000, []string{"a segment of 1.00 GiB", "give a smaller initial="}},
		{"paddle", "", 2 << 30, []string{"a segment of 2.00 GiB", "ask for less"}},
		{"paddle", "", 1 << 60, []string{"1.00 EiB", "no device has as much", "ask for less"}},
	} {
		_, err := newPool(t, c.kind, 512*mib, c.options).Malloc(c.size, 0)
		require.Error(t, err)
		text := err.Error()
		for _, words := range c.says {
			require.Contains(t, text, words, c.kind)
		}
		require.LessOrEqual(t, strings.Count(strings.ToLower(text), "free something"), 1, text)
		require.LessOrEqual(t, strings.Count(strings.ToLower(text), "out of memory"), 1, text)
		require.LessOrEqual(t, strings.Count(text, " pool: "), 1, text)
		require.NotRegexp(t, regexp.MustCompile(`\d{5}`), text)
	}
}

func TestAPaddlePoolThatHasARefillNamesTheNext(t *testing.T) {
	p := newPool(t, "paddle", 512*mib, "initial=64MiB,reallocate=1GiB")
	p.malloc(60 * mib)
	err := p.refuses(60*mib, pool.ErrOutOfMemory)
	require.ErrorContains(t, err, "a segment of 1.00 GiB")
	require.ErrorContains(t, err, "give a smaller reallocate=")
}
