package top

import (
	"flag"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/fleet"
)

var writePicture = flag.Bool("write-top", false, "draw docs/top.svg again, from the screen")

// The picture's colours for a terminal's numbers, which are all that the program itself names.
var palette = map[int]string{1: "#f7768e", 2: "#9ece6a", 3: "#e0af68", 4: "#7aa2f7"}

const (
	paper, ink                    = "#1a1b26", "#c0caf5"
	letterWidth, lineHeight, edge = 8.4, 18, 12
)

// style is what escape sequences have set.
type style struct {
	bold, faint, reverse bool
	colour               string
}

// apply applies one sequence; a sequence that the picture cannot draw is an error.
func (s *style) apply(sequence string) error {
	for word := range strings.SplitSeq(sequence, ";") {
		number, _ := strconv.Atoi(word)
		switch {
		case number == 0:
			*s = style{}
		case number == 1:
			s.bold = true
		case number == 2:
			s.faint = true
		case number == 7:
			s.reverse = true
		case palette[number-30] != "":
			s.colour = palette[number-30]
		default:
			return fmt.Errorf("the picture has no way to draw %q", sequence)
		}
	}
	return nil
}

// heightsOf draws the bars of a history as rectangles.
func heightsOf(svg *strings.Builder, letters []rune, x float64, y int, fore string) (drawn bool) {
	for i, letter := range letters {
		height := strings.IndexRune(heights, letter) / len("█")
		if !strings.ContainsRune(heights, letter) {
			continue
		}
		tall := float64(lineHeight-3) * float64(height+1) / 8
		fmt.Fprintf(svg, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n",
			x+letterWidth*float64(i), float64(y+lineHeight-1)-tall, letterWidth-1, tall, fore)
		letters[i], drawn = ' ', true
	}
	return drawn
}

// draw makes an SVG of a screen: one text element for each stretch of one style, as wide as its letters are on a
// terminal, and blocks as rectangles, because fonts leave gaps between them.
func draw(screen string, width, height int) (string, error) {
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" `+
		`font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="14">`+"\n"+
		"<title>tms top: devices, processes and their tags as bars, and the last pauses and resumes</title>\n",
		letterWidth*float64(width)+2*edge, lineHeight*height+2*edge)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", paper)
	opacity := map[rune]string{'█': "1", '▒': ".55", '░': ".25"}
	for row, line := range strings.Split(screen, "\n") {
		var now style
		column := 0
		for i, part := range strings.Split(line, "\x1b[") {
			if i > 0 {
				sequence, text, _ := strings.Cut(part, "m")
				if err := now.apply(sequence); err != nil {
					return "", err
				}
				part = text
			}
			letters := []rune(part)
			x, y := edge+letterWidth*float64(column), edge+lineHeight*row
			column += len(letters)
			if strings.TrimSpace(part) == "" && !now.reverse {
				continue
			}
			fore := ink
			if now.colour != "" {
				fore = now.colour
			}
			wide := letterWidth * float64(len(letters))
			if how, block := opacity[letters[0]]; block && strings.Trim(part, string(letters[0])) == "" {
				fmt.Fprintf(&svg, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" opacity="%s"/>`+"\n",
					x, y+3, wide, lineHeight-5, fore, how)
				continue
			}
			if heightsOf(&svg, letters, x, y, fore) {
				if part = string(letters); strings.TrimSpace(part) == "" {
					continue
				}
			}
			attributes := ""
			if now.reverse {
				fmt.Fprintf(&svg, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
					x, y, wide, lineHeight, fore)
				fore = paper
			}
			if now.bold {
				attributes += ` font-weight="bold"`
			}
			if now.faint {
				attributes += ` opacity=".6"`
			}
			fmt.Fprintf(&svg, `<text x="%.1f" y="%d" textLength="%.1f" fill="%s"%s xml:space="preserve">%s</text>`+"\n",
				x, y+lineHeight-5, wide, fore, attributes, html.EscapeString(part))
		}
	}
	svg.WriteString("</svg>\n")
	return svg.String(), nil
}

// TestPicture keeps docs/top.svg equal to the screen, with made-up figures.
func TestPicture(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	trainer := func(paused bool) fleet.Process {
		tags := []tag{
			{Name: "model", Live: 15 * gib, Held: 15 * gib, Backup: 15 * gib, Where: "host"},
			{Name: "optimizer", Live: 30 * gib, Held: 30 * gib, Backup: 30 * gib, Where: "host"}}
		for i := range tags {
			if tag := &tags[i]; paused {
				tag.Held, tag.Paused, tag.LastPause, tag.PausedSince = 0, tag.Live, 1.62, at.Add(33*time.Second)
			}
		}
		return process(4242, "python train.py", tags...)
	}
	server := func(paused bool) fleet.Process {
		tags := []tag{
			{Name: "weights", Live: 48 * gib, Held: 48 * gib, Backup: 48 * gib, Where: "host", LastPause: 1},
			{Name: "kv_cache", Live: 20 * gib, Held: 20 * gib, LastPause: 1}}
		for i := range tags {
			if tag := &tags[i]; paused {
				tag.Held, tag.Paused = 0, tag.Live
			} else {
				tag.LastResume = 1.66
			}
		}
		return process(4711, "python serve.py --port 8000", tags...)
	}
	look := func(second int, servers, trainers bool) Look {
		l := Look{At: at.Add(time.Duration(second) * time.Second),
			Processes: []fleet.Process{trainer(trainers), server(servers)},
			Devices:   []fleet.Device{{Label: "0 H200", Total: 141 * gib, Ours: 2 * gib, Others: 4 * gib}}}
		d := &l.Devices[0]
		for _, p := range l.Processes {
			d.Ours += p.Held()
		}
		d.Free = d.Total - d.Ours - d.Others
		return l
	}
	v := start(t, look(0, true, false), Settings{})
	for second := 1; second <= 42; second++ {
		v.source.look = look(second, second < 35, second >= 30)
		v.Update(v.ask())
	}
	require.Len(t, v.events, 2)
	v.press("home", "down", "down", "down", "down", "down", "up")
	v.size(80, 18)
	screen := v.View().Content
	picture, err := draw(screen, 80, 18)
	require.NoError(t, err)
	path := filepath.Join("..", "..", "docs", "top.svg")
	if *writePicture {
		require.NoError(t, os.WriteFile(path, []byte(picture), 0o644))
	}
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(written), picture, "docs/top.svg is not what the screen looks like; draw it again: "+
		"go test ./internal/top -run TestPicture -write-top")
	_, err = draw("\x1b[38;5;200mx", 80, 1)
	require.ErrorContains(t, err, "no way to draw")
}
