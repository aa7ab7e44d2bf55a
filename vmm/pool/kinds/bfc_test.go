package kinds_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/bfc"
)

func (m *made) bfc() bfc.Detail { return m.Stats().Detail.(bfc.Detail) }

// What TestBFCAgainstModel does not come to.
func TestBFCSplitting(t *testing.T) {
	for _, test := range []struct {
		name, options       string
		chunk, wanted, size uint64
	}{
		{"128 MiB left over", "", 400 * mib, 272 * mib, 272 * mib},
		{"less left over", "", 400 * mib, 272*mib + 256, 400 * mib},
		{"a fraction of the limit left over", ",fragmentation_fraction=0.001", 4 * mib, 3 * mib, 3 * mib},
		{"less than the fraction", ",fragmentation_fraction=0.001", 4 * mib, 3*mib + 256, 4 * mib},
		{"a fraction of nothing is no empty rest", ",fragmentation_fraction=1e-12", 8 * kib, 8 * kib, 8 * kib},
	} {
		p := newPool(t, "bfc", gib, "allow_growth=false,memory_limit=1048576000"+test.options)
		hole := p.malloc(test.chunk)
		p.malloc(256)
		p.free(hole)
		require.Equal(t, pool.Block{Address: hole.Address, Size: test.size}, p.malloc(test.wanted), test.name)
	}
}

func TestBFCRegionsDouble(t *testing.T) {
	p := newPool(t, "bfc", gib, "memory_limit=100MiB")
	for _, size := range []uint64{2, 4, 30, 40} { // 8, doubled until it is enough; 64, of which the limit leaves 62
		p.malloc(size * mib)
	}
	require.Equal(t, []uint64{2 * mib, 4 * mib, 32 * mib, 62 * mib}, p.source.asked)
	p.refuses(23*mib, pool.ErrOutOfMemory)
	p.refuses(100*mib+1, pool.ErrTooLarge)
	require.Len(t, p.source.asked, 4, "the limit is reached without asking")
}

// 128 blocks of 4 MiB fill the limit; without the others' regions, the last one's has no room for 508 MiB.
func TestBFCRegionsThatTouchAreJoinedWhereTheSourceCan(t *testing.T) {
	for _, joins := range []bool{false, true} {
		s := NewSource(gib)
		s.apart = !joins
		p := over(t, "bfc", s, "memory_limit=512MiB")
		blocks := p.mallocs(128, 4*mib)
		require.Equal(t, []uint64{4 * mib, 4 * mib, 8 * mib, 16 * mib, 32 * mib, 64 * mib, 128 * mib, 256 * mib},
			s.asked)
		p.free(blocks[:127]...)
		if !joins {
			p.refuses(508*mib, pool.ErrOutOfMemory)
			require.EqualValues(t, 252*mib, p.bfc().LargestFreeBlockBytes)
			continue
		}
		b := p.malloc(508 * mib)
		p.free(b)
		require.EqualValues(t, 256*mib, p.trim(), "each region can be given back by itself")
		p.free(blocks[127])
		require.EqualValues(t, 256*mib, p.bfc().LargestFreeBlockBytes)
	}
}

func TestBFCGrowsAnewAfterAFailureAndWhenItIsEmpty(t *testing.T) {
	p := newPool(t, "bfc", 32*mib, "")
	p.refuses(64*mib, pool.ErrOutOfMemory)
	p.source.asked = nil
	p.free(p.malloc(256))
	p.free(p.malloc(16 * mib))
	p.trim()
	p.malloc(1)
	require.Equal(t, []uint64{2 * mib, 16 * mib, 2 * mib}, p.source.asked)
}

func TestBFCDoublingEndsAtTheLimit(t *testing.T) { // or regions that come and go would double beyond 2^64
	p := newPool(t, "bfc", gib, "memory_limit=100MiB")
	p.malloc(2 * mib)
	for range 70 {
		p.free(p.malloc(20 * mib))
		p.trim()
	}
	require.EqualValues(t, 98*mib, p.source.asked[70])
}

func TestBFCHasOneRegionWithoutGrowth(t *testing.T) {
	p := newPool(t, "bfc", gib, "allow_growth=false,memory_limit=100000000")
	require.Empty(t, p.source.asked, "nothing before it is needed")
	p.malloc(1)
	p.malloc(50 * mib)
	require.Equal(t, []uint64{100000000 / 256 * 256}, p.source.asked)
}

func TestBFCBacksOff(t *testing.T) {
	const fixed = "allow_growth=false,memory_limit=10MiB"
	for name, c := range map[string]struct {
		capacity uint64
		options  string
		size     uint64
		err      error
		asks     int    // 0: any
		last     uint64 // 0: any
	}{
		"by a tenth":                {7 * mib, fixed, 5 * mib, nil, 5, 0},
		"stops below the size":      {7 * mib, fixed, 8 * mib, pool.ErrOutOfMemory, 4, 8 * mib},
		"tries the exact size last": {7 * mib, fixed, 7 * mib, nil, 5, 7 * mib}, // 7.29 is too much, 6.56 too little
		"ends at small sizes":       {0, "", 1, pool.ErrOutOfMemory, 0, 256},    // a tenth is less than the rounding
	} {
		p := newPool(t, "bfc", c.capacity, c.options)
		_, err := p.Malloc(c.size, 0)
		require.ErrorIs(t, err, c.err, name)
		asked := p.source.asked
		require.True(t, c.asks == 0 || c.asks == len(asked), "%s: %v", name, asked)
		require.True(t, c.last == 0 || c.last == asked[len(asked)-1], "%s: %v", name, asked)
		for i, size := range asked[1:] {
			require.Zero(t, size%256)
			require.InDelta(t, max(0.9*float64(asked[i]), float64(c.size)), float64(size), 256, name)
		}
	}
	p := newPool(t, "bfc", gib, "")
	p.source.Refuse = errors.New("device lost")
	p.refuses(1, p.source.Refuse)
	require.Len(t, p.source.asked, 1, "only when there is no room")
}

func TestBFCIdleRegionsMakeRoom(t *testing.T) {
	for options, works := range map[string]bool{"": false, ",garbage_collection=true": true} {
		p := newPool(t, "bfc", gib, "memory_limit=62MiB"+options)
		p.malloc(2 * mib)
		p.free(p.malloc(4*mib), p.malloc(8*mib), p.malloc(16*mib))
		require.EqualValues(t, 30*mib, p.Stats().Reserved)
		p.refuses(61*mib, pool.ErrOutOfMemory) // not even in the place of the idle ones
		require.EqualValues(t, 30*mib, p.Stats().Reserved)
		if !works {
			p.refuses(50*mib, pool.ErrOutOfMemory)
			continue
		}
		p.malloc(50 * mib)
		require.EqualValues(t, 62*mib, p.Stats().Reserved)
	}
}

// device is a source that knows how much memory there is, of which others have a part.
type device struct {
	*Source
	total, others uint64
	refuse        error
}

func (d *device) Memory() (free, total uint64, err error) {
	return d.total - d.others - d.reserved, d.total, d.refuse
}

func newDevice(capacity, total, others uint64) *device {
	d := &device{Source: NewSource(capacity), total: total, others: others}
	d.apart = true
	return d
}

// The limit is what the device has, unless an option says otherwise; for a source that does not know, there is none.
func TestBFCLimitIsTheDevices(t *testing.T) {
	d := newDevice(64*mib, 64*mib+100, 0)
	p := over(t, "bfc", d, "fragmentation_fraction=0.1")
	require.EqualValues(t, 64*mib, p.bfc().BytesLimit, "rounded down to 256")
	require.ErrorContains(t, p.refuses(65*mib, pool.ErrTooLarge), "the device has 64.00 MiB; ask for less")
	p.malloc(40 * mib)
	require.ErrorContains(t, p.refuses(40*mib, pool.ErrOutOfMemory),
		"the device has no room for a region; free something, or ask for less")
	require.EqualValues(t, 8*mib, over(t, "bfc", d, "memory_limit=8MiB").bfc().BytesLimit)

	whole := newDevice(gib, 64*mib, 0)
	over(t, "bfc", whole, "allow_growth=false").malloc(1)
	require.Equal(t, []uint64{64 * mib}, whole.asked)

	d.refuse = errors.New("the device is lost")
	_, err := construct("bfc", d, "")
	require.ErrorIs(t, err, d.refuse)
	require.Zero(t, over(t, "bfc", newDevice(gib, 0, 0), "").bfc().BytesLimit)
}

// A request that cannot be met even in place of idle regions leaves them where they are.
func TestBFCLetsNothingGoForAHopelessRequest(t *testing.T) {
	p := over(t, "bfc", newDevice(34*mib, 64*mib, 30*mib), "garbage_collection=true")
	p.malloc(2 * mib)
	p.free(p.malloc(4*mib), p.malloc(8*mib))
	require.EqualValues(t, 14*mib, p.Stats().Reserved)
	for _, size := range []uint64{33 * mib, 63 * mib, 65 * mib} { // of 20 free and 12 idle
		_, err := p.Malloc(size, 0)
		require.Error(t, err)
		require.EqualValues(t, 14*mib, p.Stats().Reserved, size)
	}
	p.malloc(32 * mib)
	require.EqualValues(t, 34*mib, p.Stats().Reserved)
}

func TestBFCDetail(t *testing.T) {
	p := newPool(t, "bfc", gib, "memory_limit=1GiB")
	blocks := p.mallocs(2, 512*kib)
	p.free(blocks[0])
	require.Equal(t, bfc.Detail{NumAllocs: 2, BytesInUse: 512 * kib, PeakBytesInUse: mib, LargestAllocSize: 512 * kib,
		BytesLimit: gib, BytesReserved: 2 * mib, PeakBytesReserved: 2 * mib, LargestFreeBlockBytes: mib,
		FragmentationMetric: 1.0 / 3}, p.bfc())
	p.free(blocks[1])
	require.Zero(t, p.bfc().FragmentationMetric)
	require.Zero(t, newPool(t, "bfc", gib, "").bfc().BytesLimit)
}
