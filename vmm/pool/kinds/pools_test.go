package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// construct makes a pool of a kind.
func construct(kind string, source pool.Source, settings string) (pool.Pool, error) {
	options, err := pool.ParseOptions(settings)
	if err != nil {
		return nil, err
	}
	return kinds.New(kind, source, options)
}

// made is a pool, for tests that follow one kind closely.
type made struct {
	pool.Pool
	t      *testing.T
	source *Source // of newPool
}

// newPool makes a pool over a source with a capacity in bytes. Its segments do not coalesce.
func newPool(t *testing.T, kind string, capacity uint64, settings string) *made {
	t.Helper()
	source := NewSource(capacity)
	source.apart = true
	p := over(t, kind, source, settings)
	p.source = source
	return p
}

// over makes a pool over a source. At the test's end it must give everything back.
func over(t *testing.T, kind string, source pool.Source, settings string) *made {
	t.Helper()
	p, err := construct(kind, source, settings)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Destroy())
		require.Zero(t, p.Stats().Reserved)
	})
	return &made{Pool: p, t: t}
}

func (m *made) malloc(size uint64) pool.Block {
	m.t.Helper()
	block, err := m.Malloc(size, 0)
	require.NoError(m.t, err)
	return block
}

// mallocs makes count blocks of a size.
func (m *made) mallocs(count int, size uint64) (blocks []pool.Block) {
	m.t.Helper()
	for range count {
		blocks = append(blocks, m.malloc(size))
	}
	return blocks
}

// refuses asserts that a malloc fails, and returns its error.
func (m *made) refuses(size uint64, err error) error {
	m.t.Helper()
	_, refusal := m.Malloc(size, 0)
	require.ErrorIs(m.t, refusal, err)
	return refusal
}

func (m *made) free(blocks ...pool.Block) {
	m.t.Helper()
	for _, b := range blocks {
		require.NoError(m.t, m.Free(b.Address))
	}
}

func (m *made) trim() uint64 {
	m.t.Helper()
	freed, err := m.Trim()
	require.NoError(m.t, err)
	return freed
}

// Each kind refuses options that it does not know, that are out of range, or that contradict each other.
func TestOptionsAreRefused(t *testing.T) {
	for kind, all := range map[string][]string{
		"naive":    {"round=512"},
		"freelist": {"buffer=0", "buffer=1023", "buffer=1025", "buffer=x", "size=1"},
		"buddy": {"capacity=0", "capacity=1025", "capacity=512", "min_block=0", "min_block=256", "min_block=1536",
			"min_block=8GiB", "capacity=16777215TiB", "exact=perhaps", "roots=2"},
		"slab": {"max=0", "max=65MiB", "page=0", "page=256", "page=96KiB", "page=2GiB", "page=2TiB,capacity=16TiB",
			"pages=other", "keep=-1", "capacity=1KiB", "capacity=4294967297", "pages=source,capacity=1GiB", "objects=3",
			"pages=source,max=0", "pages=source,page=2TiB", "pages=source,page=96KiB"},
		"caching": {"roundup_power2_divisions=3", "roundup_power2_divisions=0", "roundup_power2_divisions=[4:8",
			"roundup_power2_divisions=4]", "roundup_power2_divisions=[]", "roundup_power2_divisions=[3:8]",
			"roundup_power2_divisions=[4:7]", "roundup_power2_divisions=[4]", "roundup_power2_divisions=[4:8,5:2]",
			"roundup_power2_divisions=[4:8,]", "roundup_power2_divisions=x", "max_split_size=20MiB", "max_split_size=1",
			"max_split_size=34603009", "garbage_collection_threshold=1", "garbage_collection_threshold=-1",
			"total=1GiB,memory_fraction=1.1", "memory_fraction=0.5", "device=-1", "unknown=1"}, // a half of what?
		"bfc": {"memory_limit=255", "allow_growth=false", "fragmentation_fraction=0.1",
			"memory_limit=1GiB,fragmentation_fraction=2", "retry_ms=1", "growth=yes"},
		"paddle": {"min_chunk=0", "min_chunk=100", "min_chunk=4KiB,max_chunk=2KiB", "max_chunk=9000000TiB",
			"initial=8000000TiB", "descriptor=18446744073709551615", "max=1"},
	} {
		for _, settings := range all {
			_, err := construct(kind, NewSource(gib), settings)
			require.ErrorIs(t, err, pool.ErrOption, "%s: %s", kind, settings)
		}
	}
}
