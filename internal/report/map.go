package report

import (
	"cmp"
	"math"
	"slices"
)

// addressMap shows where blocks lie over time, without unused addresses.
type addressMap struct {
	Ranges [][2]uint64 `json:"ranges"` // address and size of each range with blocks, stacked
	Total  uint64      `json:"total"`  // bytes of them
	Blocks int         `json:"blocks"`
	Shown  int         `json:"shown"` // how many of the largest blocks are shown one by one; cells show the others
	Rows   int         `json:"rows"`
	Cells  int         `json:"cells"` // in a row

	shown []block
	place func(address uint64) uint64 // its place in Total
	part  []byte                      // how much of each cell the others cover, in 255ths
}

const (
	mapGap   = 2 << 20 // smaller unused ranges count as used
	mapRows  = 96
	mapCells = 512
)

// newMap shows that many blocks one by one.
func (p *process) newMap(from, to int64, shown int) *addressMap {
	m := &addressMap{Blocks: len(p.blocks), Rows: mapRows, Cells: mapCells, Ranges: [][2]uint64{}}
	blocks := slices.Clone(p.blocks)
	slices.SortFunc(blocks, func(x, y block) int { return cmp.Compare(x.address, y.address) })
	for _, b := range blocks {
		if last := len(m.Ranges) - 1; last >= 0 && b.address <= m.Ranges[last][0]+m.Ranges[last][1]+mapGap {
			m.Ranges[last][1] = max(m.Ranges[last][1], b.address+b.size-m.Ranges[last][0])
		} else {
			m.Ranges = append(m.Ranges, [2]uint64{b.address, b.size})
		}
	}
	starts := make([]uint64, len(m.Ranges))
	for i, r := range m.Ranges {
		starts[i] = m.Total
		m.Total += r[1]
	}
	m.place = func(address uint64) uint64 {
		i, found := slices.BinarySearchFunc(m.Ranges, address,
			func(r [2]uint64, a uint64) int { return cmp.Compare(r[0], a) })
		if !found {
			i--
		}
		return starts[i] + address - m.Ranges[i][0]
	}
	slices.SortStableFunc(blocks, func(x, y block) int { return cmp.Compare(y.size, x.size) })
	m.Shown = min(shown, len(blocks))
	m.shown = blocks[:m.Shown]
	m.part = m.cover(blocks[m.Shown:], from, to)
	return m
}

// cover adds up how much of each cell blocks cover. A block changes two cells in each of its rows: it adds its part
// where it begins, and subtracts it where it ends.
func (m *addressMap) cover(blocks []block, from, to int64) []byte {
	parts := make([]float64, mapRows*(mapCells+2)) // the change from one cell to the next
	perCell, perRow := float64(max(to-from, 1))/mapCells, float64(max(m.Total, 1))/mapRows
	for _, b := range blocks {
		place := float64(m.place(b.address))
		left, right := float64(b.from-from)/perCell, float64(min(b.to, to)-from)/perCell
		bottom, top := place/perRow, (place+float64(b.size))/perRow
		for row := int(bottom); row < mapRows && float64(row) < top; row++ {
			height := min(top, float64(row+1)) - max(bottom, float64(row))
			edge := func(at, sign float64) { // all cells behind at, and the part of its own cell behind it
				cell := min(int(at), mapCells)
				behind := 1 - (at - float64(cell))
				parts[row*(mapCells+2)+cell] += sign * height * behind
				parts[row*(mapCells+2)+cell+1] += sign * height * (1 - behind)
			}
			edge(left, 1)
			edge(right, -1)
		}
	}
	cells := make([]byte, mapRows*mapCells)
	for row := range mapRows {
		sum := 0.0
		for cell := range mapCells {
			sum += parts[row*(mapCells+2)+cell]
			if sum > 1e-6 {
				cells[row*mapCells+cell] = byte(math.Ceil(min(sum, 1) * 255))
			}
		}
	}
	return cells
}
