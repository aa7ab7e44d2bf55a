package store

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm/cuda"
)

// copyBench is two spans of a device's memory, and what copies between them have reported.
type copyBench struct {
	sim      *cudasim.Sim
	driver   *cuda.Driver
	job      Job
	spans    []Span
	reported []uint64
}

func newCopyBench(t *testing.T, size uint64) *copyBench {
	t.Helper()
	b := &copyBench{}
	var jobs []Job
	b.sim, b.driver, jobs = simulate(t, 1, "2G")
	b.job = jobs[0]
	b.job.Copied = func(bytes uint64) { b.reported = append(b.reported, bytes) }
	b.spans = spans(t, b.driver, 0, size, size)
	return b
}

// part is a copy of a part of the first span to the second.
func (b *copyBench) part(at uintptr, size uint64) spanCopy {
	return spanCopy{Saved: b.spans[1].Address + at, Device: b.spans[0].Address + at, Size: size}
}

// Copies are reported every 256 MiB, and the rest at the end; where the driver gives no event, at the end alone. After
// an error, too, nothing of the driver's is left.
func TestCopiesAreReported(t *testing.T) {
	b := newCopyBench(t, 300*mib)
	wrong := errors.New("wrong")
	copies := func(end error, sizes ...uint64) error {
		b.reported = nil
		defer func() { require.Zero(t, b.sim.Stat("streams")+b.sim.Stat("events")) }()
		return onCopyStream(b.driver, b.job, func(c *copyStream) error {
			at := uintptr(0)
			for _, size := range sizes {
				if err := c.toPeer(b.part(at, size)); err != nil {
					return err
				}
				at += uintptr(size)
			}
			return end
		})
	}
	require.NoError(t, copies(nil, 100*mib, 100*mib, 100*mib))
	require.Equal(t, []uint64{300 * mib, 0}, b.reported)
	b.sim.Fail("cuEventCreate", 1, int(cuda.OutOfMemory))
	require.NoError(t, copies(nil, 256*mib))
	require.Equal(t, []uint64{256 * mib}, b.reported)
	require.ErrorIs(t, copies(wrong, 256*mib), wrong)
}

// contents are a span from which others are loaded.
type contents struct {
	Contents
	from Span
}

// A loader restores spans in the order in which they are added; after an error it still takes spans, and drops them.
func TestLoader(t *testing.T) {
	b := newCopyBench(t, 2*mib)
	fill(b.spans[:1], 1)
	load := func(times int) error {
		list := func(c contents, span Span, parts ...Range) []spanCopy {
			return cutCopies(span, c.from.Address, 0, mib, parts)
		}
		loader := newCopyLoader(b.driver, b.job, list, (*copyStream).fromPeer)
		for range times {
			loader.Add(b.spans[1], contents{from: b.spans[0]})
		}
		return loader.Wait()
	}
	require.NoError(t, load(1))
	requireFilled(t, b.spans[:1], 1)
	require.Equal(t, memoryOf(b.spans[0]), memoryOf(b.spans[1]))
	b.sim.Fail("cuMemcpyDtoDAsync", 2, int(cuda.Unknown))
	require.ErrorIs(t, load(5000), cuda.Unknown)
	require.NoError(t, load(3))
}
