package kinds_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// Rules are the rules in which kinds of best fit with coalescing differ.
type Rules struct {
	Round func(size uint64) uint64         // to the size of a chunk
	Grow  func(rounded uint64) uint64      // bytes of the next segment, with room for these
	Split func(chunk, rounded uint64) bool // whether the rest of a free chunk becomes one
}

// model places blocks by the rules in the simplest way, with a list and linear searches.
type model struct {
	Rules
	chunks []modelChunk // by address
	end    uint64       // of the segments so far
}

type modelChunk struct {
	address, size, segment uint64
	live                   bool
}

func (m *model) malloc(size uint64) (address, got uint64) {
	rounded := m.Round(size)
	best := -1
	for i, c := range m.chunks {
		if !c.live && c.size >= rounded && (best < 0 || c.size < m.chunks[best].size) {
			best = i
		}
	}
	if best < 0 {
		segment := m.Grow(rounded)
		m.chunks = append(m.chunks, modelChunk{m.end, segment, m.end, false})
		m.end += segment
		best = len(m.chunks) - 1
	}
	if c := m.chunks[best]; m.Split(c.size, rounded) {
		m.chunks = slices.Insert(m.chunks, best+1, modelChunk{c.address + rounded, c.size - rounded, c.segment, false})
		m.chunks[best].size = rounded
	}
	m.chunks[best].live = true
	return m.chunks[best].address, m.chunks[best].size
}

func (m *model) free(address uint64) {
	i := slices.IndexFunc(m.chunks, func(c modelChunk) bool { return c.address == address })
	m.chunks[i].live = false
	for _, right := range []int{i + 1, i} { // the right neighbour, then to the left one
		if right == 0 || right == len(m.chunks) {
			continue
		}
		left := &m.chunks[right-1]
		if c := m.chunks[right]; !left.live && !c.live && left.segment == c.segment {
			left.size += c.size
			m.chunks = slices.Delete(m.chunks, right, right+1)
		}
	}
}

// follow compares a new pool over an endless source with the rules: both must place blocks of up to 2^most bytes, made
// and freed at random, alike.
func follow(t *testing.T, seed uint64, kind, settings string, rules Rules, most int) {
	t.Helper()
	p := newPool(t, kind, 1<<44, settings)
	random := rand.New(rand.NewPCG(seed, 1))
	m := model{Rules: rules, end: base}
	var live []pool.Block
	for step := range 6000 {
		if step/1500%2 == 1 && len(live) > 0 || random.IntN(3) == 0 && len(live) > 0 {
			i := random.IntN(len(live))
			p.free(live[i])
			m.free(uint64(live[i].Address))
			live = slices.Delete(live, i, i+1)
			continue
		}
		size := 1 + random.Uint64N(1<<(6+random.IntN(most-5)))
		b := p.malloc(size)
		address, got := m.malloc(size)
		require.Equal(t, pool.Block{Address: uintptr(address), Size: got}, b, "step %d", step)
		live = append(live, b)
	}
}

func TestBFCAgainstModel(t *testing.T) {
	for seed := range uint64(4) {
		region := uint64(2 << 20)
		follow(t, seed, "bfc", "", Rules{
			Round: func(size uint64) uint64 { return (size + 255) / 256 * 256 },
			Grow: func(rounded uint64) uint64 {
				if region >= rounded {
					region *= 2
					return region / 2
				}
				for region < rounded {
					region *= 2
				}
				return region
			},
			Split: func(chunk, rounded uint64) bool { return chunk >= 2*rounded || chunk-rounded >= 128<<20 },
		}, 29)
	}
}

func TestPaddleAgainstModel(t *testing.T) {
	for seed := range uint64(4) {
		follow(t, seed, "paddle", "max_chunk=8MiB", Rules{
			Round: func(size uint64) uint64 { return (size + 64 + 255) / 256 * 256 },
			Grow:  func(uint64) uint64 { return 8 << 20 },
			Split: func(chunk, rounded uint64) bool { return chunk > rounded },
		}, 22)
	}
}
