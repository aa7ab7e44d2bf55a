package vmm_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
)

// million returns an engine with a million live allocations of 512 bytes.
func million(b *testing.B) (*vmm.Engine, []uintptr) {
	b.Helper()
	_, _, engine := simulated(b, 1)
	addresses := make([]uintptr, 1_000_000)
	for i := range addresses {
		var err error
		addresses[i], err = engine.Malloc(vmm.Request{Size: 512, Tag: "t"})
		require.NoError(b, err)
	}
	b.Cleanup(func() {
		for _, a := range addresses {
			require.NoError(b, engine.Free(a, false))
		}
	})
	return engine, addresses
}

// orders are those in which a benchmark goes through the million: one after the other, as programs do, and
// by chance, where every step meets memory that no processor cache has.
var orders = []struct {
	name string
	next func(i, count int) int
}{
	{"in turn", func(i, count int) int { return (i + 1) % count }},
	{"by chance", func(_, count int) int { return rand.IntN(count) }},
}

// BenchmarkLookup finds the allocation at an address among a million.
func BenchmarkLookup(b *testing.B) {
	for _, order := range orders {
		b.Run(order.name, func(b *testing.B) {
			engine, addresses := million(b)
			for i := 0; b.Loop(); i = order.next(i, len(addresses)) {
				if engine.DeviceOf(addresses[i]) != 0 {
					b.Fatal()
				}
			}
		})
	}
}

// BenchmarkFreeAndMalloc frees one of a million and makes it anew. The calls of BenchmarkDriver are in it.
func BenchmarkFreeAndMalloc(b *testing.B) {
	for _, order := range orders {
		b.Run(order.name, func(b *testing.B) { freeAndMalloc(b, order.next) })
	}
}

func freeAndMalloc(b *testing.B, next func(i, count int) int) {
	engine, addresses := million(b)
	for i := 0; b.Loop(); i = next(i, len(addresses)) {
		if engine.Free(addresses[i], false) != nil {
			b.Fatal()
		}
		var err error
		if addresses[i], err = engine.Malloc(vmm.Request{Size: 512, Tag: "t"}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDriver makes the driver calls of a free and a malloc, on the simulator.
func BenchmarkDriver(b *testing.B) {
	_, driver, _ := simulated(b, 1)
	context, err := driver.DevicePrimaryCtxRetain(0)
	require.NoError(b, err)
	for b.Loop() {
		_ = driver.CtxPushCurrent(context)
		_ = driver.CtxSynchronize()
		_, _ = driver.CtxPopCurrent()
		_, _ = driver.CtxGetCurrent()
	}
}
