package bfc

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

func TestSizesAreRoundedTo256(t *testing.T) {
	p := newPool(t, newSource(GiB), "")
	for size, rounded := range map[uint64]uint64{1: 256, 256: 256, 257: 512, 1000: 1024, 4 * KiB: 4 * KiB} {
		b := malloc(t, p, size)
		require.Equal(t, rounded, b.Size)
		require.Zero(t, b.Address%256)
	}
}

func TestBinBoundaries(t *testing.T) {
	for b := range binCount {
		require.Equal(t, b, binFor(binSize(b)))
		require.Equal(t, b, binFor(binSize(b)+255))
		require.Equal(t, b, binFor(2*binSize(b)-1))
	}
	require.EqualValues(t, 256*MiB, binSize(binCount-1))
	require.Equal(t, binCount-1, binFor(1<<61))
}

// holes makes free chunks of the sizes, in this order of addresses, with live blocks between.
func holes(t *testing.T, p *Pool, sizes ...uint64) (made []pool.Block) {
	for _, size := range sizes {
		made = append(made, malloc(t, p, size))
		malloc(t, p, 256)
	}
	free(t, p, made...)
	return made
}

func TestSmallestChunkThatFitsThenLowest(t *testing.T) {
	p := newPool(t, newSource(GiB), "allow_growth=false,memory_limit=64MiB")
	made := holes(t, p, 16*KiB, 10*KiB, 9*KiB, 10*KiB, 5*KiB)
	require.Equal(t, made[2].Address, malloc(t, p, 8500).Address, "9 KiB, in the bin of 8 KiB")
	require.Equal(t, made[1].Address, malloc(t, p, 8500).Address, "the lower of 10 KiB")
	require.Equal(t, made[3].Address, malloc(t, p, 8500).Address)
	require.Equal(t, made[0].Address, malloc(t, p, 8500).Address, "from the next bin")
	require.Equal(t, made[4].Address, malloc(t, p, 5*KiB).Address)
}

func TestSplitting(t *testing.T) {
	for _, test := range []struct {
		name          string
		options       string
		chunk, wanted uint64
		size          uint64 // of the block
	}{
		{"twice the size", "", 8 * KiB, 4 * KiB, 4 * KiB},
		{"less than twice", "", 8 * KiB, 4*KiB + 256, 8 * KiB},
		{"exact", "", 8 * KiB, 8 * KiB, 8 * KiB},
		{"128 MiB left over", "", 400 * MiB, 272 * MiB, 272 * MiB},
		{"less left over", "", 400 * MiB, 272*MiB + 256, 400 * MiB},
		{"a fraction of the limit left over", ",fragmentation_fraction=0.001", 4 * MiB, 3 * MiB, 3 * MiB},
		{"less than the fraction", ",fragmentation_fraction=0.001", 4 * MiB, 3*MiB + 256, 4 * MiB},
		{"a fraction of nothing is no empty rest", ",fragmentation_fraction=1e-12", 8 * KiB, 8 * KiB, 8 * KiB},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPool(t, newSource(GiB), "allow_growth=false,memory_limit=1048576000"+test.options)
			hole := holes(t, p, test.chunk)[0]
			b := malloc(t, p, test.wanted)
			require.Equal(t, hole.Address, b.Address)
			require.Equal(t, test.size, b.Size)
		})
	}
}

func TestFreedNeighboursAreJoined(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		p := newPool(t, newSource(GiB), "")
		var blocks []pool.Block
		for range 3 {
			blocks = append(blocks, malloc(t, p, 4*KiB))
		}
		guard := malloc(t, p, 256)
		for _, i := range order {
			free(t, p, blocks[i])
			check(t, p)
		}
		all := malloc(t, p, 12*KiB)
		require.Equal(t, blocks[0].Address, all.Address)
		free(t, p, all, guard)
		require.EqualValues(t, 2*MiB, detail(p).LargestFreeBlockBytes)
	}
}

func TestRegionsDouble(t *testing.T) {
	s := newSource(GiB)
	p := newPool(t, s, "memory_limit=100MiB")
	malloc(t, p, 2*MiB)
	malloc(t, p, 4*MiB)
	malloc(t, p, 30*MiB) // 8, doubled until it is enough
	malloc(t, p, 40*MiB) // 32 is not; 64, of which the limit leaves 62
	require.Equal(t, []uint64{2 * MiB, 4 * MiB, 32 * MiB, 62 * MiB}, s.asked)

	_, err := p.Malloc(23*MiB, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	_, err = p.Malloc(100*MiB+1, 0)
	require.ErrorIs(t, err, pool.ErrTooLarge)
	require.Len(t, s.asked, 4, "the limit is reached without asking")
}

// 128 blocks of 4 MiB fill the limit; without the others' regions, the last one's has no room for 508 MiB.
func TestRegionsThatTouchAreJoinedWhereTheSourceCan(t *testing.T) {
	for _, joins := range []bool{false, true} {
		s := newSource(GiB)
		s.joins = joins
		p := newPool(t, s, "memory_limit=512MiB")
		var blocks []pool.Block
		for range 128 {
			blocks = append(blocks, malloc(t, p, 4*MiB))
		}
		want := []uint64{4 * MiB, 4 * MiB, 8 * MiB, 16 * MiB, 32 * MiB, 64 * MiB, 128 * MiB, 256 * MiB}
		require.Equal(t, want, s.asked)
		free(t, p, blocks[:127]...)
		check(t, p)
		b, err := p.Malloc(508*MiB, 0)
		if !joins {
			require.ErrorIs(t, err, pool.ErrOutOfMemory)
			require.EqualValues(t, 252*MiB, detail(p).LargestFreeBlockBytes)
			require.Len(t, dump(p).Regions, 8)
			continue
		}
		require.NoError(t, err)
		require.Len(t, dump(p).Regions, 1)
		free(t, p, b)
		freed, err := p.Trim()
		require.NoError(t, err)
		require.EqualValues(t, 256*MiB, freed, "each region can be given back by itself")
		free(t, p, blocks[127])
		require.EqualValues(t, 256*MiB, detail(p).LargestFreeBlockBytes)
	}
}

func TestAFailureDoesNotGrowTheNextRegion(t *testing.T) {
	s := newSource(16 * MiB)
	p := newPool(t, s, "")
	_, err := p.Malloc(64*MiB, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	s.asked = nil
	malloc(t, p, 256)
	require.Equal(t, []uint64{2 * MiB}, s.asked)
}

func TestAnEmptiedPoolGrowsAsANewOne(t *testing.T) {
	s := newSource(GiB)
	p := newPool(t, s, "")
	free(t, p, malloc(t, p, 16*MiB))
	_, err := p.Trim()
	require.NoError(t, err)
	malloc(t, p, 1)
	require.Equal(t, []uint64{16 * MiB, 2 * MiB}, s.asked)
}

func TestDoublingEndsAtTheLimit(t *testing.T) { // or regions that come and go would double beyond 2^64
	s := newSource(GiB)
	p := newPool(t, s, "memory_limit=100MiB")
	malloc(t, p, 2*MiB)
	for range 70 {
		free(t, p, malloc(t, p, 20*MiB))
		_, err := p.Trim()
		require.NoError(t, err)
	}
	require.EqualValues(t, 98*MiB, s.asked[70])
}

func TestOneRegionWithoutGrowth(t *testing.T) {
	s := newSource(GiB)
	p := newPool(t, s, "allow_growth=false,memory_limit=100000000")
	require.Empty(t, s.asked, "nothing before it is needed")
	malloc(t, p, 1)
	malloc(t, p, 50*MiB)
	require.Equal(t, []uint64{100000000 / 256 * 256}, s.asked)
}

func TestBackOff(t *testing.T) {
	s := newSource(7 * MiB)
	p := newPool(t, s, "allow_growth=false,memory_limit=10MiB")
	malloc(t, p, 5*MiB)
	require.Len(t, s.asked, 5)
	for i, size := range s.asked {
		require.Zero(t, size%256)
		if i > 0 {
			require.InDelta(t, 0.9*float64(s.asked[i-1]), float64(size), 256)
		}
	}

	t.Run("stops below the size", func(t *testing.T) {
		s := newSource(7 * MiB)
		p := newPool(t, s, "allow_growth=false,memory_limit=10MiB")
		_, err := p.Malloc(8*MiB, 0)
		require.ErrorIs(t, err, pool.ErrOutOfMemory)
		require.Len(t, s.asked, 4) // 10, 9, 8.1, and what is needed
	})

	t.Run("tries the exact size last", func(t *testing.T) {
		s := newSource(7 * MiB)
		p := newPool(t, s, "allow_growth=false,memory_limit=10MiB")
		malloc(t, p, 7*MiB) // 7.29 is too much, and a tenth less is too little
		require.EqualValues(t, 7*MiB, s.asked[len(s.asked)-1])
	})

	t.Run("ends at small sizes", func(t *testing.T) { // where a tenth is less than the rounding
		s := newSource(0)
		p := newPool(t, s, "")
		_, err := p.Malloc(1, 0)
		require.ErrorIs(t, err, pool.ErrOutOfMemory)
		require.EqualValues(t, 256, s.asked[len(s.asked)-1])
	})

	t.Run("only when there is no room", func(t *testing.T) {
		s := newSource(GiB)
		s.err = errors.New("device lost")
		p := newPool(t, s, "")
		_, err := p.Malloc(1, 0)
		require.ErrorIs(t, err, s.err)
		require.Len(t, s.asked, 1)
		s.err = nil
	})
}

func TestIdleRegionsMakeRoom(t *testing.T) {
	for options, works := range map[string]bool{"": false, ",garbage_collection=true": true} {
		s := newSource(GiB)
		p := newPool(t, s, "memory_limit=62MiB"+options)
		kept := malloc(t, p, 2*MiB)
		free(t, p, malloc(t, p, 4*MiB), malloc(t, p, 8*MiB), malloc(t, p, 16*MiB))
		require.EqualValues(t, 30*MiB, p.Stats().Reserved)
		_, err := p.Malloc(61*MiB, 0)
		require.ErrorIs(t, err, pool.ErrOutOfMemory, "not even in the place of the idle ones")
		require.EqualValues(t, 30*MiB, p.Stats().Reserved)

		b, err := p.Malloc(50*MiB, 0)
		if !works {
			require.ErrorIs(t, err, pool.ErrOutOfMemory)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, 62*MiB, p.Stats().Reserved)
		free(t, p, kept, b)
	}
}

// device is a source that knows how much memory there is, of which others have a part.
type device struct {
	*source
	total, others uint64
	pool          *Pool
	refuse        error
}

func (d *device) Memory() (free, total uint64, err error) {
	if d.pool == nil {
		return d.total - d.others, d.total, d.refuse
	}
	return d.total - d.others - d.pool.table.Stats().Reserved, d.total, d.refuse
}

// The limit is what the device has, unless an option says otherwise; for a source that does not know, there is none.
func TestTheLimitIsTheDevices(t *testing.T) {
	d := &device{source: newSource(64 * MiB), total: 64*MiB + 100}
	p := newPool(t, d, "fragmentation_fraction=0.1")
	require.EqualValues(t, 64*MiB, detail(p).BytesLimit, "rounded down to 256")
	_, err := p.Malloc(65*MiB, 0)
	require.ErrorIs(t, err, pool.ErrTooLarge)
	require.ErrorContains(t, err, "the device has 64.00 MiB; ask for less")
	malloc(t, p, 40*MiB)
	_, err = p.Malloc(40*MiB, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.ErrorContains(t, err, "the device has no room for a region; free something, or ask for less")
	require.EqualValues(t, 8*MiB, detail(newPool(t, d, "memory_limit=8MiB")).BytesLimit)

	whole := &device{source: newSource(GiB), total: 64 * MiB}
	malloc(t, newPool(t, whole, "allow_growth=false"), 1)
	require.Equal(t, []uint64{64 * MiB}, whole.asked)

	d.refuse = errors.New("the device is lost")
	_, err = New(d, nil)
	require.ErrorIs(t, err, d.refuse)
	require.EqualValues(t, 0, detail(newPool(t, &device{source: newSource(GiB)}, "")).BytesLimit)
}

// A request that cannot be met even in place of idle regions leaves them where they are.
func TestAHopelessRequestLetsNothingGo(t *testing.T) {
	d := &device{source: newSource(34 * MiB), total: 64 * MiB, others: 30 * MiB}
	p := newPool(t, d, "garbage_collection=true")
	d.pool = p
	kept := malloc(t, p, 2*MiB)
	free(t, p, malloc(t, p, 4*MiB), malloc(t, p, 8*MiB))
	require.EqualValues(t, 14*MiB, p.Stats().Reserved)
	for _, size := range []uint64{33 * MiB, 63 * MiB, 65 * MiB} { // of 20 free and 12 idle
		_, err := p.Malloc(size, 0)
		require.Error(t, err)
		require.EqualValues(t, 14*MiB, p.Stats().Reserved, size)
	}
	b := malloc(t, p, 32*MiB)
	require.EqualValues(t, 34*MiB, p.Stats().Reserved)
	free(t, p, kept, b)
}

func TestMallocWaitsForAFree(t *testing.T) {
	p := newPool(t, newSource(GiB), "memory_limit=2MiB,retry_ms=60000")
	b := malloc(t, p, 2*MiB)
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = p.Free(b.Address)
	}()
	malloc(t, p, 2*MiB)
	require.Zero(t, p.Stats().Failures)

	impatient := newPool(t, newSource(GiB), "memory_limit=2MiB,retry_ms=30")
	malloc(t, impatient, 2*MiB)
	begin := time.Now()
	_, err := impatient.Malloc(1, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
	require.EqualValues(t, 1, impatient.Stats().Failures)
}

func TestOptionsAreChecked(t *testing.T) {
	for _, options := range []string{
		"memory_limit=255", "allow_growth=false", "fragmentation_fraction=0.1",
		"fragmentation_fraction=2", "retry_ms=-1", "growth=yes",
	} {
		parsed, err := pool.ParseOptions(options)
		require.NoError(t, err)
		_, err = New(newSource(GiB), parsed)
		require.ErrorIs(t, err, pool.ErrOption, options)
	}
}

func TestDetail(t *testing.T) {
	p := newPool(t, newSource(GiB), "memory_limit=1GiB")
	a, b := malloc(t, p, 512*KiB), malloc(t, p, 512*KiB)
	free(t, p, a)
	require.Equal(t, Detail{
		NumAllocs:             2,
		BytesInUse:            512 * KiB,
		PeakBytesInUse:        MiB,
		LargestAllocSize:      512 * KiB,
		BytesLimit:            GiB,
		BytesReserved:         2 * MiB,
		PeakBytesReserved:     2 * MiB,
		LargestFreeBlockBytes: MiB,
		FragmentationMetric:   1.0 / 3,
	}, detail(p))
	free(t, p, b)
	require.Zero(t, detail(p).FragmentationMetric)
	require.Zero(t, detail(newPool(t, newSource(GiB), "")).BytesLimit)
}

func TestSteadyStateMakesNoGarbage(t *testing.T) {
	p := newPool(t, newSource(GiB), "")
	blocks := make([]pool.Block, 1000)
	random := rand.New(rand.NewPCG(1, 2))
	churn := func() {
		for range 10_000 {
			i := random.IntN(len(blocks))
			_ = p.Free(blocks[i].Address)
			blocks[i], _ = p.Malloc(1+random.Uint64N(64*KiB), 0)
		}
	}
	churn()
	require.Zero(t, testing.AllocsPerRun(5, churn))
}

func TestMetadataIsBelowOnePercent(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	p := newPool(t, newSource(1<<46), "")
	random := rand.New(rand.NewPCG(1, 2))
	var blocks []uintptr
	for range 20_000 {
		blocks = append(blocks, malloc(t, p, random.Uint64N(4*MiB)+1).Address)
	}
	for i := 0; i < len(blocks); i += 2 {
		require.NoError(t, p.Free(blocks[i]))
	}
	used, managed := heap()-before-8*uint64(cap(blocks)), p.Stats().PeakLive
	t.Logf("%d bytes of metadata for %d managed: %.4f %%", used, managed, 100*float64(used)/float64(managed))
	require.Less(t, used, managed/100)
}
