package paddle

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// model places blocks by the rules as they are told, with a list and linear searches.
type model struct {
	chunks []modelChunk // by address
	end    uint64       // of the refills so far
}

type modelChunk struct {
	address, size, refill uint64
	live                  bool
}

const modelRefill = 8 * MiB

func (m *model) malloc(size uint64) (address, got uint64) {
	size = (size + 64 + 255) / 256 * 256
	best := -1
	for i, c := range m.chunks {
		if !c.live && c.size >= size && (best < 0 || c.size < m.chunks[best].size) {
			best = i
		}
	}
	if best < 0 {
		m.chunks = append(m.chunks, modelChunk{m.end, modelRefill, m.end, false})
		m.end += modelRefill
		best = len(m.chunks) - 1
	}
	if c := m.chunks[best]; c.size > size {
		m.chunks = slices.Insert(m.chunks, best+1, modelChunk{c.address + size, c.size - size, c.refill, false})
		m.chunks[best].size = size
	}
	m.chunks[best].live = true
	return m.chunks[best].address, size
}

func (m *model) free(address uint64) {
	i := slices.IndexFunc(m.chunks, func(c modelChunk) bool { return c.address == address })
	m.chunks[i].live = false
	for _, right := range []int{i + 1, i} { // the right buddy, then to the left one
		if right == 0 || right == len(m.chunks) {
			continue
		}
		left := &m.chunks[right-1]
		if c := m.chunks[right]; !left.live && !c.live && left.refill == c.refill {
			left.size += c.size
			m.chunks = slices.Delete(m.chunks, right, right+1)
		}
	}
}

func TestAgainstModel(t *testing.T) {
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := newPool(t, newSource(1<<44), "max_chunk=8MiB")
		m := model{end: base}
		var live []uintptr
		for step := range 6000 {
			if step/1500%2 == 1 && len(live) > 0 || random.IntN(3) == 0 && len(live) > 0 {
				i := random.IntN(len(live))
				require.NoError(t, p.Free(live[i]))
				m.free(uint64(live[i]))
				live = slices.Delete(live, i, i+1)
				continue
			}
			size := 1 + random.Uint64N(1<<(6+random.IntN(17)))
			b := malloc(t, p, size)
			address, got := m.malloc(size)
			require.Equal(t, address, uint64(b.Address), "step %d", step)
			require.Equal(t, got, b.Size)
			live = append(live, b.Address)
		}
	}
}
