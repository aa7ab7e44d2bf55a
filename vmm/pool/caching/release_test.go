package caching

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

func TestShortageReleasesOversizeBlocksFirst(t *testing.T) {
	for _, c := range []struct {
		name    string
		cached  []uint64 // of stream 0, in MiB
		wanted  uint64
		left    uint64 // held in the end
		retries int64
	}{
		{"the first that is large enough", []uint64{30, 50, 90, 130}, 70, 30 + 50 + 130 + 70, 0},
		{"from the largest down", []uint64{30, 50, 60, 70, 80}, 130, 30 + 50 + 60 + 130, 0},
		{"down to max_split_size", []uint64{32, 40, 200}, 260, 260, 0},
		{"too little: all", []uint64{30, 50, 70, 140}, 280, 280, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, 310*mib, "max_split_size=32MiB")
			var cached []uintptr
			for _, size := range c.cached {
				cached = append(cached, b.malloc(size*mib, 0))
			}
			b.free(cached...)
			b.malloc(c.wanted*mib, 0)
			require.Equal(t, c.left*mib, b.Stats().Reserved)
			require.Equal(t, c.retries, b.detail().AllocRetries)
		})
	}
	b := newBench(t, 200*mib, "max_split_size=32MiB")
	b.free(b.malloc(100*mib, 1))
	b.malloc(150*mib, 0)
	require.Equal(t, int64(1), b.detail().AllocRetries, "those of other streams wait for the next step")
}

func TestOtherErrorsOfTheSource(t *testing.T) {
	b := newBench(t, gib, "max_split_size=32MiB")
	b.free(b.malloc(40*mib, 0))
	b.device.refuse = errors.New("the device fell off the bus")
	_, err := b.Malloc(36*mib, 1)
	require.ErrorIs(t, err, b.device.refuse)
	_, err = b.Malloc(80*mib, 0)
	require.ErrorIs(t, err, b.device.refuse)
	require.NotErrorIs(t, err, pool.ErrOutOfMemory)
	require.Equal(t, uint64(40*mib), b.Stats().Reserved, "nothing was given back for it")
	require.Zero(t, b.detail().OutOfMemories)
}

func TestRefusedFreeDuringShortage(t *testing.T) {
	b := newBench(t, 100*mib, "")
	cached := b.malloc(60*mib, 0)
	b.free(cached)
	b.device.refuseFree = errors.New("not now")
	_, err := b.Malloc(80*mib, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.ErrorIs(t, err, b.device.refuseFree)
	check(t, b.Pool)
	require.Equal(t, cached, b.malloc(60*mib, 0), "still there")
}

func TestMemoryFraction(t *testing.T) {
	b := newBench(t, gib, "memory_fraction=0.5")
	b.malloc(500*mib, 0)
	_, err := b.Malloc(14*mib, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.ErrorContains(t, err, "524.00 MiB free; 512.00 MiB allowed; 500.00 MiB reserved")
	require.Zero(t, b.Stats().SourceFailures, "it was not asked")
	b.malloc(12*mib, 0)
}

func TestGarbageCollection(t *testing.T) {
	b := newBench(t, gib, "memory_fraction=0.5,garbage_collection_threshold=0.58") // from 297 MiB on
	var blocks []uintptr
	for _, size := range []uint64{40, 60, 80, 100} {
		blocks = append(blocks, b.malloc(size*mib, 0))
	}
	b.free(blocks[0], blocks[1])
	for range 10 { // these grow old
		b.free(b.malloc(5*mib, 1))
	}
	b.free(blocks[2])
	b.malloc(110*mib, 0)
	var held []uint64
	for _, s := range b.Snapshot() {
		held = append(held, s.Size/mib)
	}
	require.Equal(t, []uint64{80, 100, 20, 110}, held, "those of at least the average age went")
	require.Zero(t, b.detail().AllocRetries)
}

func TestGarbageCollectionEndsWithTheExcess(t *testing.T) {
	b := newBench(t, gib, "memory_fraction=0.5,garbage_collection_threshold=0.5") // from 256 MiB on
	old, young := b.malloc(44*mib, 0), b.malloc(56*mib, 0)
	b.malloc(180*mib, 0)
	b.malloc(5*mib, 1)
	b.free(old)
	b.malloc(5*mib, 1)
	b.free(young)
	b.malloc(100*mib, 2)
	require.Equal(t, uint64((56+180+20+100)*mib), b.Stats().Reserved)
}

func TestNoGarbageCollectionWithoutFraction(t *testing.T) {
	b := newBench(t, gib, "garbage_collection_threshold=0.01")
	b.free(b.malloc(100*mib, 0))
	b.malloc(200*mib, 0)
	require.Equal(t, uint64(300*mib), b.Stats().Reserved)
	require.NoError(t, b.SetMemoryFraction(1))
	b.malloc(250*mib, 0)
	require.Equal(t, uint64(450*mib), b.Stats().Reserved)
}

func TestOutOfMemoryText(t *testing.T) {
	b := newBench(t, 100*mib, "device=3")
	b.malloc(mib+512, 0)
	b.device.held += 30 * mib // somebody else's
	_, err := b.Malloc(1000*mib-1, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.Equal(t, "CUDA out of memory. Tried to allocate 1000.00 MiB (GPU 3; 100.00 MiB total capacity; 1.00 MiB "+
		"already allocated; 50.00 MiB free; 20.00 MiB reserved in total by the pool). Ask for less", err.Error())
	var causes interface{ Unwrap() []error }
	require.ErrorAs(t, err, &causes)
	require.ErrorContains(t, causes.Unwrap()[1], "a segment of 1000.00 MiB")

	for options, facts := range map[string]string{
		"":            "(GPU 0; unknown total capacity; 0 bytes already allocated; unknown free; ",
		"total=64GiB": "(GPU 0; 64.00 GiB total capacity; 0 bytes already allocated; 64.00 GiB free; ",
	} {
		_, err := newPool(t, pool.NewRange(base, mib), options).Malloc(1, 0)
		require.ErrorContains(t, err, facts)
	}
	b.device.refuseMemory = errors.New("the device does not answer")
	_, err = b.Malloc(gib, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.ErrorContains(t, err, "unknown total capacity")
	require.ErrorIs(t, b.SetMemoryFraction(1), b.device.refuseMemory)

	_, err = b.Malloc(1<<60+1, 0)
	require.ErrorIs(t, err, pool.ErrTooLarge)
}
