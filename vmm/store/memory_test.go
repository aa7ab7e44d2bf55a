package store

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm/cuda"
)

// simulate returns the simulator, reset, its driver, and a job for each of its devices, which have the memory ("4G").
func simulate(t testing.TB, devices int, memory string) (*cudasim.Sim, *cuda.Driver, []Job) {
	t.Helper()
	t.Setenv("CUDASIM_DEVICES", fmt.Sprint(devices))
	t.Setenv("CUDASIM_MEMORY", memory)
	sim := cudasim.Start(t)
	driver, err := cuda.Open(sim.Path)
	require.NoError(t, err)
	jobs := make([]Job, devices)
	for ordinal := range jobs {
		context, err := driver.DevicePrimaryCtxRetain(cuda.Device(ordinal))
		require.NoError(t, err)
		jobs[ordinal] = Job{Device: ordinal, Context: context, Node: -1}
	}
	return sim, driver, jobs
}

// spans maps memory of a device.
func spans(t testing.TB, driver *cuda.Driver, device int, sizes ...uint64) []Span {
	t.Helper()
	spans := make([]Span, len(sizes))
	for i, size := range sizes {
		address, err := driver.MemAddressReserve(size, 0)
		require.NoError(t, err)
		handle, err := driver.MemCreate(size, device)
		require.NoError(t, err)
		require.NoError(t, driver.MemMap(address, size, handle))
		require.NoError(t, driver.MemSetAccess(address, size, device))
		spans[i] = Span{Address: address, Size: size}
	}
	return spans
}

// memoryOf returns the memory of a span.
func memoryOf(s Span) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&s.Address))), s.Size)
}

// fill writes words that depend on seed, and their place, into every page.
func fill(spans []Span, seed uint64) {
	each(spans, seed, func(_, _ int, word *uint64, filled uint64) { *word = filled })
}

// requireFilled asserts that spans hold what fill wrote.
func requireFilled(t *testing.T, spans []Span, seed uint64) {
	t.Helper()
	each(spans, seed, func(span, at int, word *uint64, filled uint64) {
		if *word != filled {
			t.Fatalf("span %d differs at byte %d", span, at)
		}
	})
}

func each(spans []Span, seed uint64, f func(span, at int, word *uint64, filled uint64)) {
	for i, span := range spans {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		bytes := memoryOf(span)
		for at := 0; at < len(bytes); at += 2048 {
			f(i, at, (*uint64)(unsafe.Pointer(&bytes[at])), random.Uint64())
		}
	}
}

// wipe zeroes spans.
func wipe(spans []Span) {
	for _, span := range spans {
		clear(memoryOf(span))
	}
}

// itemsFor returns the items of a Save; kept may be nil.
func itemsFor(spans []Span, kept []Contents, target int) []Item {
	items := make([]Item, len(spans))
	for i, span := range spans {
		items[i] = Item{Span: span, Parts: []Range{{Size: span.Size}}, Target: target}
		if kept != nil {
			items[i].Saved = kept[i]
		}
	}
	return items
}

// loadAll brings contents back from wherever they are.
func loadAll(job Job, spans []Span, contents []Contents) error {
	loaders := map[Store]Loader{}
	for i, c := range contents {
		if loaders[c.Store()] == nil {
			loaders[c.Store()] = c.Store().Load(job)
		}
		loaders[c.Store()].Add(spans[i], c)
	}
	var first error
	for _, loader := range loaders {
		first = cmp.Or(first, loader.Wait())
	}
	return first
}

// discardAll discards contents.
func discardAll(contents []Contents) {
	for _, c := range contents {
		c.Discard()
	}
}
