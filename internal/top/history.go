package top

import (
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"tms/internal/aid/readable"
)

// history is bytes over time: one sample for each span of time that had a look, the last one last.
type history []sample

// sample is the mean of the looks in one span of time.
type sample struct {
	span  int64 // since 1970
	sum   float64
	looks float64
}

// spanned is what one bar of a history stands for: four looks.
const spanned = 4 * every

// mostSamples is more than a terminal has room for.
const mostSamples = 100

func (h history) with(at time.Time, bytes uint64) history {
	span := at.UnixNano() / int64(spanned)
	if len(h) == 0 || h[len(h)-1].span != span {
		h = append(h, sample{span: span})
	}
	last := &h[len(h)-1]
	last.sum += float64(bytes)
	last.looks++
	return h[max(0, len(h)-mostSamples):]
}

// remember notes what devices and processes have, and forgets devices and processes that have gone.
func (m *model) remember() {
	past := map[key]history{}
	for i := range m.look.Processes {
		p := &m.look.Processes[i]
		k := key{pid: p.PID, device: unseen}
		if past[k] = m.past[k]; p.Error == "" {
			past[k] = past[k].with(m.look.At, p.Held())
		}
	}
	for i, d := range m.look.Devices {
		k := key{device: i}
		past[k] = m.past[k].with(m.look.At, d.Total-min(d.Free, d.Total))
	}
	m.past = past
}

// The heights of a history's bars, from 1/8 of the whole on; nothing is a point, and no look a space.
const (
	heights      = "▁▂▃▄▅▆▇█"
	asciiHeights = "_,-=+*%#"
)

// over draws a row's last spans, one in each column, as parts of a whole.
func (m *model) over(style lipgloss.Style, k key, width int, whole uint64) string {
	heights, point := []rune(heights), "·"
	if m.settings.ASCII {
		heights, point = []rune(asciiHeights), "."
	}
	text := strings.Split(strings.Repeat(" ", width), "")
	now := m.look.At.UnixNano() / int64(spanned)
	for _, s := range m.past[k] {
		at := width - 1 - int(now-s.span)
		if at < 0 || at >= width {
			continue
		}
		if s.sum == 0 {
			text[at] = point
			continue
		}
		height := cells(uint64(s.sum/s.looks), whole, len(heights))
		text[at] = string(heights[max(0, height-1)])
	}
	return style.Render(strings.Join(text, ""))
}

// since names the time that a width of bars stands for.
func since(width int) string { return readable.Age(time.Duration(width) * spanned) }
