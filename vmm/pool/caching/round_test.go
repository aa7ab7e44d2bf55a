package caching

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRounding(t *testing.T) {
	for _, c := range []struct {
		divisions     string
		size, rounded uint64
	}{
		{"", 1, 512}, {"", 512, 512}, {"", 513, 1024}, {"", 700, 1024}, {"", mib + 1, mib + 512}, {"", gib - 1, gib},
		// Too small for steps: they would be of less than 512 bytes.
		{"4", 700, 1024}, {"4", 1200, 1536}, {"4", 2048, 2048},
		{"4", 2049, 2560}, {"4", 4097, 5 * kib}, {"4", 6 * kib, 6 * kib},
		{"4", 7*mib + 1, 8 * mib}, {"8", 7*mib + 1, 7*mib + mib/2}, {"8", 300 * mib, 320 * mib},
		// One step is none.
		{"1", 4097, 4608}, {"1", 1000000, 1000448},
		// The first of a list holds for all smaller sizes; sizes that are not named have none.
		{"[4:8;8:2]", 100*kib + 1, 104 * kib}, {"[4:8;8:2]", 4*mib + 1, 4*mib + mib/2},
		{"[4:8;8:2]", 8*mib + 1, 12 * mib}, {"[4:8;8:2]", 16*mib + 1, 16*mib + 512},
		{"[4:8;16:4]", 8*mib + 1, 8*mib + 512},
		// With commas, as PyTorch has it.
		{"[4:8,8:2,>:4]", 100*kib + 1, 104 * kib}, {"[4:8,8:2,>:4]", 8*mib + 1, 12 * mib},
		{"[4:8,8:2,>:4]", 16*mib + 1, 20 * mib},
		// > holds for what comes after.
		{"[4:8;8:2;>:4]", 8*mib + 1, 12 * mib}, {"[4:8;8:2;>:4]", 16*mib + 1, 20 * mib},
		{"[ 4 : 8 ; > : 4 ]", 8*mib + 1, 10 * mib}, {"[>:2]", mib + 1, mib + mib/2}, {"[>:2]", 1 << 59, 1 << 59},
		// The last interval, from 32 GiB, is for all larger sizes.
		{"[4:8;8:2;>:4]", 1<<40 + 1, 1<<40 + 1<<38}, {"[65536:2]", 1<<36 + 1, 3 << 35}, {"[65536:2]", 5, 512},
	} {
		b := newBench(t, gib, "roundup_power2_divisions="+c.divisions)
		require.Equal(t, c.rounded, b.divisions.round(c.size), "%d with %q", c.size, c.divisions)
	}
}

func TestSegments(t *testing.T) {
	for _, c := range []struct{ size, segment uint64 }{
		{1, 2 * mib}, {mib, 2 * mib},
		{mib + 1, 20 * mib}, {10*mib - 512, 20 * mib}, {10*mib - 511, 10 * mib}, // rounds to 10 MiB
		{10 * mib, 10 * mib}, {10*mib + 1, 12 * mib}, {11 * mib, 12 * mib}, {gib, gib},
	} {
		b := newBench(t, 4*gib, "")
		b.malloc(c.size, 0)
		require.Equal(t, c.segment, b.Stats().Reserved, "for %d", c.size)
	}
}
