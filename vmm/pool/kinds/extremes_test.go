package kinds_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

// numeric are the options of each kind that take a number.
var numeric = map[string][]string{
	"naive":    {},
	"freelist": {"buffer"},
	"buddy":    {"capacity", "min_block"},
	"slab":     {"max", "page", "capacity", "keep"},
	"caching": {"max_split_size", "roundup_power2_divisions", "garbage_collection_threshold", "memory_fraction",
		"total", "device"},
	"bfc":    {"memory_limit", "fragmentation_fraction"},
	"paddle": {"min_chunk", "max_chunk", "initial", "reallocate", "descriptor"},
}

// around returns numbers on both sides of every power of two, from 0 up to the last one.
func around() []uint64 {
	numbers := []uint64{^uint64(0), ^uint64(0) - 511}
	for shift := range 64 {
		power := uint64(1) << shift
		numbers = append(numbers, power-1, power, power+1)
	}
	return numbers
}

// settings returns all options that a kind can be made with where one of them, or two, are at an extreme.
func settings(kind string) []string {
	list := []string{""}
	extremes := []uint64{0, 1, 512, 64 << 10, 64 << 20, 64 << 30, 1 << 40, 1 << 57, 1 << 63, ^uint64(0)}
	for i, option := range numeric[kind] {
		for _, value := range around() {
			list = append(list, fmt.Sprintf("%s=%d", option, value))
		}
		for _, other := range numeric[kind][:i] {
			for _, value := range extremes {
				for _, second := range extremes {
					list = append(list, fmt.Sprintf("%s=%d,%s=%d", option, value, other, second))
				}
			}
		}
	}
	switch kind {
	case "slab":
		for _, value := range around() {
			list = append(list, fmt.Sprintf("pages=source,page=%d", value), fmt.Sprintf("pages=source,max=%d", value))
		}
	case "bfc":
		for _, value := range around() {
			list = append(list, fmt.Sprintf("allow_growth=false,memory_limit=%d", value),
				fmt.Sprintf("fragmentation_fraction=1,memory_limit=%d", value))
		}
	case "caching":
		for shift := range 64 {
			list = append(list,
				fmt.Sprintf("roundup_power2_divisions=[%d:%d]", uint64(1)<<shift, uint64(1)<<(63-shift)))
		}
	}
	return list
}

// TestExtremes: whatever an option's value, and whatever the size, a pool answers with a block or an error, and goes
// on.
func TestExtremes(t *testing.T) {
	if testing.Short() {
		t.Skip("-short is for the race detector, and each pool has one thread")
	}
	for _, kind := range kinds.Names() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			made := 0
			for _, text := range settings(kind) {
				source := NewSource(1 << 42)
				p, err := construct(kind, source, text)
				if err != nil {
					require.ErrorIs(t, err, pool.ErrOption, text)
					continue
				}
				made++
				require.NotPanics(t, func() { askForExtremes(t, p) }, text)
				segments, _ := source.Held()
				require.Zero(t, segments)
			}
			require.Positive(t, made)
		})
	}
}

func askForExtremes(t *testing.T, p pool.Pool) {
	var last pool.Block
	for _, size := range around() {
		block, err := p.Malloc(size, 0)
		served := err == nil && size > 0
		if served != (block.Address != 0) || served && (block.Size < size || block.Address == last.Address) {
			t.Fatalf("%d bytes: %+v, %v", size, block, err)
		}
		if !served {
			continue
		}
		require.NoError(t, p.Free(last.Address))
		last = block
	}
	require.NoError(t, p.Destroy())
}
