package vmm_test

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"tms/vmm"
	"tms/vmm/cuda"
)

// million returns an engine with a million live allocations of 512 bytes.
func million(b *testing.B) (*vmm.Engine, *cuda.Driver, []uintptr) {
	b.Helper()
	_, driver, engine := simulated(b, 1)
	return engine, driver, mallocs(b, engine, 1_000_000, vmm.Request{Size: 512, Tag: "t"})
}

// batch is how many a benchmark picks at a time, off the clock.
const batch = 1000

// orders are the orders in which a benchmark goes through the million: one after the other, as programs do, and random,
// where every step touches memory that no processor cache has.
var orders = []struct {
	name string
	next func(i, count int) int
}{
	{"in turn", func(i, count int) int { return (i + 1) % count }},
	{"by chance", func(_, count int) int { return rand.IntN(count) }},
}

// inBatches picks batches of different addresses of a million, times a look at each, and reports what one takes.
func inBatches(b *testing.B, addresses []uintptr, next func(i, count int) int, name string, look func(batch []uintptr),
	after func(batch []uintptr)) {
	b.Helper()
	var spent time.Duration
	chosen, targets := make([]int, batch), make([]uintptr, batch)
	at, looks := 0, 0
	for b.Loop() {
		seen := map[int]bool{}
		for i := range chosen {
			for at = next(at, len(addresses)); seen[at]; {
				at = next(at, len(addresses))
			}
			chosen[i], targets[i], seen[at] = at, addresses[at], true
		}
		begin := time.Now()
		look(targets)
		spent += time.Since(begin)
		looks += batch
		after(targets)
		for i, a := range targets {
			addresses[chosen[i]] = a
		}
	}
	b.ReportMetric(0, "ns/op") // of a batch and what goes with it
	b.ReportMetric(float64(spent.Nanoseconds())/float64(looks), name)
}

// BenchmarkLookup finds the allocation at an address among a million.
func BenchmarkLookup(b *testing.B) {
	for _, order := range orders {
		b.Run(order.name, func(b *testing.B) {
			engine, _, addresses := million(b)
			inBatches(b, addresses, order.next, "ns/lookup", func(targets []uintptr) {
				for _, a := range targets {
					if base, _ := engine.Records().RangeOf(a); base != a {
						b.Fatal()
					}
				}
			}, func([]uintptr) {})
		})
	}
}

// BenchmarkFree frees some of a million, and makes as many again off the clock. It reports the whole time, and the time
// without the driver's calls.
func BenchmarkFree(b *testing.B) {
	for _, order := range orders {
		b.Run(order.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			engine, driver, addresses := million(b)
			var calls time.Duration
			frees := 0
			inBatches(b, addresses, order.next, "ns/free", func(targets []uintptr) {
				for _, a := range targets {
					if engine.Free(a, false) != nil {
						b.Fatal()
					}
				}
			}, func(targets []uintptr) {
				begin := time.Now()
				for range targets {
					_, _ = driver.CtxGetCurrent()
					_ = driver.CtxSynchronize()
				}
				calls += time.Since(begin)
				frees += len(targets)
				for i := range targets {
					var err error
					if targets[i], err = engine.Malloc(vmm.Request{Size: 512, Tag: "t"}); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(calls.Nanoseconds())/float64(frees), "ns/free-in-driver")
		})
	}
}

// BenchmarkSegment makes and frees a segment of a granule, in a tag that has others.
func BenchmarkSegment(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, driver, engine := simulated(b, 1)
	r := vmm.Request{Size: 2 << 20, Tag: "t"}
	malloc(b, engine, r) // makes a context current
	r.Context, _ = driver.CtxGetCurrent()
	for b.Loop() {
		a, err := engine.Malloc(r)
		if err == nil {
			err = engine.Free(a, false)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPause pauses and resumes 400 segments, in extents of 64 MiB.
func BenchmarkPause(b *testing.B) {
	_, _, engine := simulated(b, 1)
	mallocs(b, engine, 400, vmm.Request{Size: 2 << 20, Tag: "t"})
	for b.Loop() {
		cycle(b, engine, vmm.Options{ExtentBytes: 64 << 20})
	}
}

// BenchmarkPair allocates eight times in the order of a stream and frees there, as a training step does.
func BenchmarkPair(b *testing.B) {
	for name, size := range map[string]uint64{"small": 64 << 10, "large": 8 << 20} {
		b.Run(name, func(b *testing.B) {
			_, driver, engine := simulated(b, 1)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			malloc(b, engine, vmm.Request{Size: 1, Tag: "u"}) // makes a context current
			context, _ := driver.CtxGetCurrent()
			stream, err := driver.StreamCreate()
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = driver.StreamDestroy(stream) })
			var addresses [8]uintptr
			for b.Loop() {
				for i := range addresses {
					addresses[i], err = engine.Malloc(vmm.Request{Size: size * uint64(i%3+1), Tag: "t", Context: context,
						Ordered: true, Stream: stream, Keep: 1 << 40})
					if err != nil {
						b.Fatal(err)
					}
				}
				for _, a := range addresses {
					if err := engine.FreeAfter(a, stream); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(addresses)), "ns/pair")
		})
	}
}
