package replay

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"tms/internal/page"
)

//go:embed page.html
var html string

// How much of a timeline a page has: what a screen can show.
const (
	pagePoints  = 1000
	pageColumns = 1000
	pageBlocks  = 600  // that can be pointed at
	pageFailed  = 1000 // marks
)

// panel is a pool's part of the page's data.
type panel struct {
	*Result
	Detail any `json:"detail,omitempty"` // hides that of Stats, which the page has no use for

	At        []int       `json:"at"`
	Requested []uint64    `json:"requested"`
	Live      []uint64    `json:"live"`
	Reserved  []uint64    `json:"reserved"`
	Top       uint64      `json:"top"`
	Map       string      `json:"map"`
	Blocks    [][6]uint64 `json:"blocks"` // position, size, asked for, from, to, address
	Failed    [][2]uint64 `json:"failed"` // operation, asked for; no more than there is room for, evenly chosen
}

// WritePage writes a page of HTML that needs nothing else: what the results say, memory over time and the
// address map of each. The results must have timelines.
func WritePage(to io.Writer, results []*Result) error {
	panels := make([]panel, len(results))
	for i, r := range results {
		var err error
		if panels[i], err = newPanel(r); err != nil {
			return err
		}
	}
	var colours []string
	for i := range sizes {
		c := ramp(float64(i) / (sizes - 1))
		colours = append(colours, fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B))
	}
	means := map[string]string{"peak requested": "the most bytes live, as they were asked for"}
	for _, c := range columns {
		if c.means != "" {
			means[c.title] = strings.ReplaceAll(c.means, "\n", " ")
		}
	}
	data, err := json.Marshal(struct {
		Panels  []panel           `json:"panels"`
		Colours []string          `json:"colours"`
		Means   map[string]string `json:"means"` // of the columns
	}{panels, colours, means}) // escapes what would end a script
	if err != nil {
		return err
	}
	_, err = io.WriteString(to, page.Fill(html, "/*data*/", string(data)))
	return err
}

func newPanel(r *Result) (panel, error) {
	t := r.Timeline
	picture, err := t.grid(pageColumns).png()
	if err != nil {
		return panel{}, err
	}
	p := panel{Result: r, Top: t.top(), Map: "data:image/png;base64," + base64.StdEncoding.EncodeToString(picture),
		Blocks: [][6]uint64{}, Failed: [][2]uint64{}}
	for i := range min(len(t.failed), pageFailed) {
		p.Failed = append(p.Failed, t.failed[i*len(t.failed)/min(len(t.failed), pageFailed)])
	}
	p.At, p.Requested, p.Live, p.Reserved = t.series(pagePoints)
	for _, b := range t.largest(pageBlocks) {
		p.Blocks = append(p.Blocks, [6]uint64{b.address, b.size, b.requested, uint64(b.from), uint64(b.to), b.offset})
	}
	return p, nil
}
