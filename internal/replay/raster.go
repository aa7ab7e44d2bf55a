package replay

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/bits"
)

// The map is drawn as an image, because a trace has more blocks than a page should have shapes. A cell
// shows how much of it is live, in the colour of the size of the block that is most of it. Neighbours
// have two tints of it in turn, so that they can be told apart.
const (
	sizes  = 22 // colours, one for each power of two from blocks of 512 bytes to those of 1 GiB and more
	tints  = 2
	shades = 5 // of how much is live
	rows   = 360
)

// Palette entries; live ones follow.
const (
	entryNothing = iota
	entryReserved
	entryLive
)

func palette() color.Palette {
	p := color.Palette{entryNothing: color.NRGBA{}, entryReserved: color.NRGBA{128, 132, 145, 70}}
	for size := range sizes {
		c := ramp(float64(size) / (sizes - 1))
		for tint := range tints {
			for shade := range shades {
				c.A = uint8(60 + (255-60-45*tint)*(shade+1)/shades)
				p = append(p, c)
			}
		}
	}
	return p
}

// ramp goes from violet over blue, green and yellow to red; its colours show on white and on black.
func ramp(x float64) color.NRGBA {
	stops := [...][3]float64{{124, 92, 214}, {58, 134, 236}, {28, 168, 160}, {92, 182, 76}, {232, 168, 40}, {226, 84, 62}}
	at := x * float64(len(stops)-1)
	i := min(int(at), len(stops)-2)
	mix := func(channel int) uint8 {
		a, b := stops[i][channel], stops[i+1][channel]
		return uint8(math.Round(a + (b-a)*(at-float64(i))))
	}
	return color.NRGBA{mix(0), mix(1), mix(2), 255}
}

func sizeClass(size uint64) int {
	return max(0, min(bits.Len64(size)-10, sizes-1))
}

// grid is the cells of a map. Row 0 is at address 0.
type grid struct {
	columns   int
	perColumn float64 // operations
	perRow    float64 // bytes
	held      []bool
	live      []float32 // part of the cell
	most      []float32 // the largest part of a block
	class     []uint8   // of that block's size
}

func (t *Timeline) grid(columns int) *grid {
	operations, top := len(t.live), t.top()
	columns = max(1, min(columns, operations))
	cells := columns * rows
	g := &grid{
		columns:   columns,
		perColumn: float64(max(operations, 1)) / float64(columns), perRow: float64(max(top, 1)) / rows,
		held: make([]bool, cells), live: make([]float32, cells), most: make([]float32, cells), class: make([]uint8, cells),
	}
	for _, s := range t.segments {
		g.cover(s, func(cell int, _ float32) { g.held[cell] = true })
	}
	for i, b := range t.blocks {
		class := uint8(sizeClass(b.size)*tints + i%tints)
		g.cover(b, func(cell int, part float32) {
			g.live[cell] += part
			if part > g.most[cell] {
				g.most[cell], g.class[cell] = part, class
			}
		})
	}
	return g
}

// cover calls f with each cell that a rectangle touches, and the part of it that it covers.
func (g *grid) cover(r rectangle, f func(cell int, part float32)) {
	left, right := float64(r.from)/g.perColumn, float64(r.to)/g.perColumn
	bottom, above := float64(r.address)/g.perRow, float64(r.address+r.size)/g.perRow
	for row := int(bottom); row < rows && float64(row) < above; row++ {
		height := min(above, float64(row+1)) - max(bottom, float64(row))
		for column := int(left); column < g.columns && float64(column) < right; column++ {
			width := min(right, float64(column+1)) - max(left, float64(column))
			f(row*g.columns+column, float32(width*height))
		}
	}
}

// png returns the image, with address 0 below.
func (g *grid) png() ([]byte, error) {
	picture := image.NewPaletted(image.Rect(0, 0, g.columns, rows), palette())
	for row := range rows {
		for column := range g.columns {
			cell := row*g.columns + column
			entry := entryNothing
			switch shade := int(math.Ceil(float64(g.live[cell]) * shades)); {
			case shade > 0:
				entry = entryLive + int(g.class[cell])*shades + min(shade, shades) - 1
			case g.held[cell]:
				entry = entryReserved
			}
			picture.SetColorIndex(column, rows-1-row, uint8(entry))
		}
	}
	var encoded bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err := encoder.Encode(&encoded, picture)
	return encoded.Bytes(), err
}
