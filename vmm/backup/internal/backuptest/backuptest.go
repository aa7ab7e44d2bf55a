// Package backuptest has what tests of the stores share: device memory on the simulator, which lets the host write it,
// and its contents.
package backuptest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm/backup"
	"tms/vmm/cuda"
)

// Simulate returns the simulator, reset, its driver, and a job for each of its devices, which have the memory ("4G").
func Simulate(t testing.TB, devices int, memory string) (*cudasim.Sim, *cuda.Driver, []backup.Job) {
	t.Helper()
	t.Setenv("CUDASIM_DEVICES", fmt.Sprint(devices))
	t.Setenv("CUDASIM_MEMORY", memory)
	sim := cudasim.Start(t)
	driver, err := cuda.Open(sim.Path)
	require.NoError(t, err)
	jobs := make([]backup.Job, devices)
	for ordinal := range jobs {
		context, err := driver.DevicePrimaryCtxRetain(cuda.Device(ordinal))
		require.NoError(t, err)
		jobs[ordinal] = backup.Job{Device: ordinal, Context: context, Node: -1}
	}
	return sim, driver, jobs
}

// Spans maps memory of a device.
func Spans(t testing.TB, driver *cuda.Driver, device int, sizes ...uint64) []backup.Span {
	t.Helper()
	spans := make([]backup.Span, len(sizes))
	for i, size := range sizes {
		address, err := driver.MemAddressReserve(size, 0)
		require.NoError(t, err)
		handle, err := driver.MemCreate(size, device)
		require.NoError(t, err)
		require.NoError(t, driver.MemMap(address, size, handle))
		require.NoError(t, driver.MemSetAccess(address, size, device))
		spans[i] = backup.Span{Address: address, Size: size}
	}
	return spans
}

// Bytes returns the memory of a span.
func Bytes(s backup.Span) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&s.Address))), s.Size)
}

// Fill writes words that depend on seed, and their place, into every page.
func Fill(spans []backup.Span, seed uint64) {
	each(spans, seed, func(_, _ int, word *uint64, filled uint64) { *word = filled })
}

// RequireFilled asserts that spans hold what Fill wrote.
func RequireFilled(t *testing.T, spans []backup.Span, seed uint64) {
	t.Helper()
	each(spans, seed, func(span, at int, word *uint64, filled uint64) {
		if *word != filled {
			t.Fatalf("span %d differs at byte %d", span, at)
		}
	})
}

func each(spans []backup.Span, seed uint64, f func(span, at int, word *uint64, filled uint64)) {
	for i, span := range spans {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		bytes := Bytes(span)
		for at := 0; at < len(bytes); at += 2048 {
			f(i, at, (*uint64)(unsafe.Pointer(&bytes[at])), random.Uint64())
		}
	}
}

// Wipe zeroes spans.
func Wipe(spans []backup.Span) {
	for _, span := range spans {
		clear(Bytes(span))
	}
}

// Items returns the items of a Save; kept may be nil.
func Items(spans []backup.Span, kept []backup.Contents, target int) []backup.Item {
	items := make([]backup.Item, len(spans))
	for i, span := range spans {
		items[i] = backup.Item{Span: span, Parts: []backup.Range{{Size: span.Size}}, Target: target}
		if kept != nil {
			items[i].Kept = kept[i]
		}
	}
	return items
}

// Load brings contents back from wherever they are.
func Load(job backup.Job, spans []backup.Span, contents []backup.Contents) error {
	loaders := map[backup.Store]backup.Loader{}
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

// Discard discards contents.
func Discard(contents []backup.Contents) {
	for _, c := range contents {
		c.Discard()
	}
}
