package report

import (
	"bytes"
	"cmp"
	"compress/gzip"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

//go:embed page.html
var html string

// uPlot draws the page's charts; uplot/ has its npm package, version 1.6.32.
var (
	//go:embed uplot/uPlot.iife.min.js
	uPlot string
	//go:embed uplot/uPlot.min.css
	uPlotStyle string
	//go:embed uplot/LICENSE
	uPlotLicence string
)

// The size of a page. If a recording does not fit into mostPage, the page leaves out columns and blocks.
const (
	mostPage       = 1 << 20 // bytes
	mostColumns    = 4096
	leastColumns   = 256
	blocksShown    = 3000
	mostOperations = 1000 // the longest
	mostLargest    = 20
)

// shownProcess is a process's part of the page's data.
type shownProcess struct {
	*process
	Operations    []described  `json:"operations"`
	AllOperations int          `json:"all_operations"`
	Map           *addressMap  `json:"map"`
	Largest       []shownBlock `json:"largest"`
}

type shownBlock struct {
	Address string   `json:"address"`
	Size    uint64   `json:"size"`
	Series  int      `json:"series"`
	Thread  uint32   `json:"thread"`
	From    *float64 `json:"from"` // nil: before the recording
	To      *float64 `json:"to"`   // nil: after the recording
}

type shown struct {
	Zero      time.Time      `json:"zero"`
	Duration  float64        `json:"duration"`
	Columns   int            `json:"columns"`
	Exact     bool           `json:"exact"` // every change is a column
	Metrics   []string       `json:"metrics"`
	Processes []shownProcess `json:"processes"`
}

// WritePage writes a self-contained page of HTML. Errors: trace.ErrMalformed, the operating system's, the writer's.
func WritePage(to io.Writer, paths []string) error {
	processes, err := readAll(paths)
	if err != nil {
		return err
	}
	for columns, blocks := mostColumns, blocksShown; ; columns, blocks = columns/2, blocks*2/3 {
		var made bytes.Buffer
		if err := writePage(&made, processes, columns, blocks); err != nil {
			return err
		}
		if made.Len() < mostPage || columns <= leastColumns {
			_, err = made.WriteTo(to)
			return err
		}
	}
}

func writePage(to io.Writer, processes []*process, most, blocks int) error {
	c := newColumns(processes, most)
	zero, end := c[0], c[c.count()]
	seconds := func(at int64) float64 { return time.Duration(at - zero).Seconds() }
	s := shown{Zero: time.Unix(0, zero), Duration: seconds(end), Columns: c.count(), Exact: c.exact(processes),
		Metrics: metricNames[:]}

	// The numbers, in the order in which the page's script reads them.
	var data bytes.Buffer
	numbers := func(values ...float64) { _ = binary.Write(&data, binary.LittleEndian, values) }
	for _, bound := range c {
		numbers(seconds(bound))
	}
	sums := func(steps []step, count int) {
		for metric := range metrics {
			e := c.envelope(steps, count, metric)
			for _, values := range append(e.atMost, e.least) {
				for _, value := range values {
					_ = binary.Write(&data, binary.LittleEndian, float32(value))
				}
			}
		}
	}
	if len(processes) > 1 {
		sums(together(processes), len(processes))
	}
	for _, p := range processes {
		sums(p.steps, len(p.Series))
		m := p.newMap(zero, end, blocks)
		data.Write(m.part)
		for _, b := range m.shown {
			numbers(float64(m.place(b.address)), float64(b.size), seconds(b.from), seconds(min(b.to, end)),
				float64(b.series))
		}
		s.Processes = append(s.Processes, p.show(zero, m))
	}
	var packed bytes.Buffer
	packer, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	_, err := packer.Write(data.Bytes())
	if err = errors.Join(err, packer.Close()); err != nil {
		return err
	}
	text, err := json.Marshal(s) // escapes the end tag of a script
	if err != nil {
		return err
	}
	filled := strings.NewReplacer("/*data*/", string(text), "/*numbers*/",
		base64.StdEncoding.EncodeToString(packed.Bytes()),
		"/*library*/", uPlot, "/*style*/", uPlotStyle, "/*licence*/", uPlotLicence)
	_, err = filled.WriteString(to, html)
	return err
}

func (p *process) show(zero int64, m *addressMap) shownProcess {
	made := shownProcess{process: p, Map: m, AllOperations: len(p.operations), Operations: []described{},
		Largest: []shownBlock{}}
	operations := slices.Clone(p.operations)
	if len(operations) > mostOperations {
		slices.SortStableFunc(operations, func(x, y operation) int { return cmp.Compare(y.took, x.took) })
		operations = operations[:mostOperations]
	}
	slices.SortStableFunc(operations, func(x, y operation) int { return cmp.Compare(x.from, y.from) })
	for _, o := range operations {
		made.Operations = append(made.Operations, o.describe(zero))
	}
	for _, b := range m.shown[:min(mostLargest, len(m.shown))] {
		shown := shownBlock{Address: fmt.Sprintf("%#x", b.address), Size: b.size, Series: b.series, Thread: b.thread}
		if !b.earlier {
			shown.From = new(time.Duration(b.from - zero).Seconds())
		}
		if b.to <= p.to {
			shown.To = new(time.Duration(b.to - zero).Seconds())
		}
		made.Largest = append(made.Largest, shown)
	}
	return made
}
