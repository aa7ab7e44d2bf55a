package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

// Colours are the terminal's own sixteen, and say nothing that the characters do not say too.
var (
	bold   = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	chosen = lipgloss.NewStyle().Reverse(true)
	green  = lipgloss.NewStyle().Foreground(lipgloss.Color("2"))
	yellow = lipgloss.NewStyle().Foreground(lipgloss.Color("3"))
	blue   = lipgloss.NewStyle().Foreground(lipgloss.Color("4"))
	red    = lipgloss.NewStyle().Foreground(lipgloss.Color("1"))
)

// part is a part of a bar, or of its legend.
type part struct {
	style lipgloss.Style
	glyph string
	ascii string
	bytes uint64
}

func (m *model) glyph(p part) string {
	if m.settings.ASCII {
		return p.ascii
	}
	return p.glyph
}

// bar draws parts of a whole. A part that is not empty shows.
func (m *model) bar(width int, whole uint64, parts ...part) string {
	var bar strings.Builder
	var before uint64
	left := width
	for _, p := range parts {
		n := cells(before+p.bytes, whole, width) - cells(before, whole, width)
		if p.bytes > 0 {
			n = max(n, 1)
		}
		before += p.bytes
		n = min(n, left)
		left -= n
		bar.WriteString(p.style.Render(strings.Repeat(m.glyph(p), n)))
	}
	return bar.String() + strings.Repeat(" ", left)
}

// cells returns how many of width cells show bytes of whole.
func cells(bytes, whole uint64, width int) int {
	if whole == 0 {
		return 0
	}
	return min(width, int(float64(bytes)/float64(whole)*float64(width)+0.5))
}

func ofDevice(d fleet.Device) []part {
	return []part{{green, "█", "#", d.Ours}, {yellow, "▒", "+", d.Others}, {faint, "·", ".", d.Free}}
}

func ofTag(t stats.Tag) []part {
	saved := min(t.PausedBytes, t.BackupBytes)
	return []part{{green, "█", "#", t.PhysicalBytes}, {blue, "▒", "+", saved}, {faint, "░", "-", t.PausedBytes - saved}}
}

// fit makes text as wide as asked for: it cuts the text, or adds spaces behind it, or before it for a negative width.
func (m *model) fit(text string, width int) string {
	side, end := lipgloss.Left, "…"
	if width < 0 {
		side, width = lipgloss.Right, -width
	}
	if m.settings.ASCII {
		end = "~"
	}
	return lipgloss.PlaceHorizontal(width, side, ansi.Truncate(text, width, end))
}

// The smallest terminal on which something is shown.
const (
	leastWidth  = 36
	leastHeight = 8
)

func (m *model) View() tea.View {
	lines := []string{m.fit("tms top: this terminal is too small", m.width)}
	switch {
	case m.width < leastWidth || m.height < leastHeight:
	case m.help:
		lines = m.helpLines()
	default:
		lines = m.lines()
	}
	lines = lines[:min(len(lines), max(1, m.height))]
	view := tea.NewView(strings.Join(lines, "\n"))
	view.AltScreen = true
	view.WindowTitle = "tms top"
	return view
}

// lines returns the whole screen: first the short parts, then as many rows as there is room for.
func (m *model) lines() []string {
	events := min(6, max(0, (m.height-8)/4))
	devices := m.deviceLines(max(2, (m.height-1)/3))
	lines, detail := append([]string{m.title()}, devices...), m.detail(1+events/3)
	lines = append(lines, m.rowLines(m.height-len(lines)-events-len(detail)-1)...)
	if events > 0 {
		lines = append(lines, m.eventLines(events)...)
	}
	return append(append(lines, detail...), faint.Render(m.fit(m.hints(), m.width)))
}

func (m *model) title() string {
	text, clock := "tms top", ""
	if m.seen {
		clock = " " + m.look.At.Format(time.TimeOnly)
		count := fmt.Sprintf("%d processes", len(m.look.Processes))
		if len(m.look.Processes) == 1 {
			count = "1 process"
		}
		text += "  " + count + ", sorted by " + orderings[m.order].name
	}
	if m.filter != "" || m.typing {
		text += fmt.Sprintf(", with %q", m.filter)
	}
	return bold.Render(m.fit(text, m.width-len(clock))) + clock
}

// numberWidth is the width of a number of bytes.
const numberWidth = 8

// deviceLines returns the lines of the devices, and not more than most.
func (m *model) deviceLines(most int) []string {
	label, numbers := 16, 4
	if m.width < 80 {
		label, numbers = 10, 2
	}
	bar := m.width - label - 1 - numbers*(numberWidth+1)
	if bar > 60 {
		label, bar = label+min(20, bar-60), bar-min(20, bar-60)
	}
	legend := ""
	for i, p := range ofDevice(fleet.Device{}) {
		legend += p.style.Render(m.glyph(p)) + faint.Render(" "+[]string{"ours  ", "others  ", "free"}[i])
	}
	head := faint.Render(m.fit("DEVICE", label)) + " " + m.fit(legend, bar)
	for _, name := range []string{"OURS", "FREE", "OTHERS", "TOTAL"}[:numbers] {
		head += " " + faint.Render(m.fit(name, -numberWidth))
	}
	lines := []string{head}
	if m.look.Note != "" {
		most--
	}
	shown := m.look.Devices
	if len(shown) > most-1 {
		shown = shown[:max(0, most-2)]
	}
	over := 1+2*len(shown) <= most
	for i, d := range shown {
		line := m.fit(readable.Printable(d.Label), label) + " " + m.bar(bar, d.Total, ofDevice(d)...)
		for _, bytes := range []uint64{d.Ours, d.Free, d.Others, d.Total}[:numbers] {
			line += " " + m.fit(readable.Short(bytes), -numberWidth)
		}
		lines = append(lines, line)
		if over {
			lines = append(lines, faint.Render(m.fit("  used "+since(bar), label))+" "+
				m.over(lipgloss.NewStyle(), key{device: i}, bar, d.Total))
		}
	}
	if more := len(m.look.Devices) - len(shown); more > 0 {
		lines = append(lines, m.fit(fmt.Sprintf("and %d devices more", more), m.width))
	}
	if m.look.Note != "" {
		lines = append(lines, yellow.Render(m.fit(readable.Printable(m.look.Note), m.width)))
	}
	return lines
}

// columns are the widths of those of the rows' columns that vary, in cells, and which are left out.
type columns struct {
	name, bar int  // bar 0: left out
	all       bool // also LIVE and BACKUP
}

const (
	pidWidth   = 7
	stateWidth = 11
)

func (m *model) columns() columns {
	c := columns{all: m.width >= 72}
	left := m.width - 2 - pidWidth - 1 - numberWidth - 1 - stateWidth - 1
	if c.all {
		left -= 2 * (numberWidth + 1)
	}
	c.name = max(1, left)
	if left > 20 {
		c.name = min(40, 18+max(0, left-31)/2)
		c.bar = left - c.name - 1
	}
	return c
}

// line returns what is before a row's bar, and what is after it.
func (c columns) line(m *model, first, name, live, held, backup, state string) (before, after string) {
	before = m.fit(first, -pidWidth) + " " + m.fit(name, c.name)
	if c.bar > 0 {
		before += " "
	}
	numbers := []string{held}
	if c.all {
		numbers = []string{live, held, backup}
	}
	for _, number := range numbers {
		after += " " + m.fit(number, -numberWidth)
	}
	return before, after + " " + m.fit(state, stateWidth)
}

// rowLines returns height lines, with the selected row among them.
func (m *model) rowLines(height int) []string {
	if height <= 0 {
		return nil
	}
	c, rows := m.columns(), m.rows()
	var whole uint64
	for i := range m.look.Processes {
		all := sum(&m.look.Processes[i], m.look.At)
		whole = max(whole, all.PhysicalBytes+all.PausedBytes)
	}
	room := height - 1
	first := max(0, min(m.line-room/2, len(rows)-room))
	head := "COMMAND, TAG"
	if len(rows) > room {
		head = fmt.Sprintf("%d-%d of %d", first+1, min(first+room, len(rows)), len(rows))
	}
	before, after := c.line(m, "PID", head, "LIVE", "HELD", "BACKUP", "STATE")
	lines := []string{faint.Render("  " + before + m.fit("last "+since(c.bar), c.bar) + after)}
	for i := first; i < min(first+room, len(rows)); i++ {
		lines = append(lines, m.rowLine(c, rows[i], whole))
	}
	if len(rows) == 0 && m.seen && room > 0 {
		why := "no process of " + cmp.Or(m.settings.Whose, "this user") + " listens; see tms ps --help"
		if m.filter != "" {
			why = "no process has that in its number, command or tags"
		}
		lines = append(lines, m.fit("  "+why, m.width))
	}
	for len(lines) < height {
		lines = append(lines, "")
	}
	return lines[:height]
}

func (m *model) rowLine(c columns, r row, whole uint64) string {
	f, first, name := r.figures, fmt.Sprint(r.pid), r.process.Brief()
	if !r.whole {
		first, name = fmt.Sprint("dev ", r.device), "  "+readable.Printable(r.tag)
		if r.on.GPU != nil {
			first = fmt.Sprint("GPU ", *r.on.GPU)
		}
	}
	state := f.state
	if f.total > 0 && f.working() {
		state += fmt.Sprintf(" %d%%", f.done*100/f.total)
	}
	style := lipgloss.NewStyle()
	switch {
	case r.process.Error != "":
		style = red
	case f.AllPaused() > 0 || f.working():
		style = blue
	case r.whole:
		style = bold
	}
	cursor := "  "
	if r.key == m.selected {
		cursor, style = "> ", chosen
	}
	// The bar has colours of its own; a process's are over time.
	bar := m.bar(c.bar, whole, ofTag(f.Tag)...)
	if r.whole {
		bar = m.over(green, r.key, c.bar, whole)
	}
	before, after := c.line(m, first, name, readable.Short(f.LiveBytes), readable.Short(f.PhysicalBytes),
		readable.Short(f.BackupBytes), state)
	return style.Render(cursor+before) + bar + style.Render(after)
}

// eventLines returns the last lines of the events, and not more than height.
func (m *model) eventLines(height int) (lines []string) {
	for _, e := range m.events[max(0, len(m.events)-height):] {
		lines = append(lines, m.fit(e.String(), m.width))
	}
	if m.seen && len(m.events) == 0 {
		lines = append(lines, faint.Render(m.fit("pauses and resumes are listed here as they happen", m.width)))
	}
	return append(make([]string, height-len(lines)), lines...)
}

// detail returns the result of the last key, or else the details of the selected row, in at most most lines.
func (m *model) detail(most int) []string {
	switch {
	case m.typing:
		return []string{m.fit("/"+m.filter+"_", m.width)}
	case m.message != "":
		style := bold
		if m.failed {
			style = red
		}
		return m.wrap(m.message, most, style)
	}
	for _, r := range m.rows() {
		if r.key == m.selected {
			return m.wrap(r.detail(m.look.At), most, lipgloss.NewStyle())
		}
	}
	return []string{""}
}

// wrap breaks text into lines of the screen's width, and cuts the last of them.
func (m *model) wrap(text string, most int, style lipgloss.Style) (lines []string) {
	text = readable.Printable(text)
	for len(lines) < most-1 {
		line, _, more := strings.Cut(ansi.Wordwrap(text, m.width, ""), "\n")
		if !more {
			break
		}
		lines = append(lines, style.Render(m.fit(line, m.width)))
		text = strings.TrimLeft(strings.TrimPrefix(text, strings.TrimRight(line, " ")), " ")
	}
	return append(lines, style.Render(m.fit(text, m.width)))
}

func (r row) detail(now time.Time) string {
	if r.process.Error != "" {
		return fmt.Sprintf("%d: %s", r.pid, r.process.Error)
	}
	t, whose := r.figures.Tag, r.whose(now)
	if r.whole {
		return fmt.Sprintf("%d: %sheld %s, paused %s, backup %s%s; %s", r.pid, whose, readable.Short(t.PhysicalBytes),
			readable.Short(t.PausedBytes), readable.Short(t.BackupBytes), without(t), r.process.Command)
	}
	text := fmt.Sprintf("%s: %spaused %s, slack %s, backup %s", t.Tag, whose, readable.Short(t.PausedBytes),
		readable.Short(t.SlackBytes), readable.Short(t.BackupBytes))
	if place := fleet.Place(t); place != "" {
		text += " " + place
	}
	text += without(t)
	if t.LastPauseSeconds > 0 {
		text += "; last pause " + seconds(t.LastPauseSeconds)
	}
	if t.LastResumeSeconds > 0 {
		text += "; last resume " + seconds(t.LastResumeSeconds)
	}
	if r.on.GPU != nil && *r.on.GPU != r.device {
		text += fmt.Sprint("; device ", r.device)
	}
	if r.on.UUID != "" {
		text += "; " + r.on.UUID
	}
	return text
}

// whose says who keeps the row's memory paused, since when and until when. It is "" if the program itself may resume it.
func (r row) whose(now time.Time) (text string) {
	for _, pause := range r.process.PausedBy {
		if r.whole || len(pause.Tags) == 0 || slices.Contains(pause.Tags, r.tag) {
			text += fleet.Whose(r.pid, pause, now) + "; "
		}
	}
	return text
}

// without says how much is paused without contents, or would be by the pause key. It is "" if nothing is.
func without(t stats.Tag) (text string) {
	if t.WithoutContents > 0 {
		text += ", " + readable.Short(t.WithoutContents) + " without contents"
	}
	if t.PauseWithoutContents > 0 {
		text += "; p frees " + readable.Short(t.PauseWithoutContents) + " without contents"
	}
	return text
}

func (m *model) hints() string {
	if m.typing {
		return "type what the number, command or a tag has; enter: done, esc: all"
	}
	if m.width < 64 {
		return "p pause  r resume  s  /  h help  q quit"
	}
	up := "↑↓"
	if m.settings.ASCII {
		up = "up/down"
	}
	return up + " select  p pause  r resume  s sort  / filter  h help  q quit"
}

// keyWidth is the width of what the help explains.
const keyWidth = 9

func (m *model) helpLines() []string {
	legend := func(parts []part, names ...string) string {
		var words []string
		for i, p := range parts {
			words = append(words, p.style.Render(strings.Repeat(m.glyph(p), 2))+" "+names[i])
		}
		return strings.Join(words, "  ")
	}
	lines := []string{bold.Render("tms top")}
	for _, about := range [][2]string{
		{"up, down", "select; so do page up and down, home, end"},
		{"p", "pause, as tms pause does; never by force"},
		{"r", "resume, as tms resume does"},
		{"s", "sort by most held, longest paused, number or command"},
		{"/", "filter by number, command or tag; esc: all"},
		{"ctrl+z", "stop; fg goes on"},
		{"q", "quit; what is under way is interrupted"},
		{"DEVICE", legend(ofDevice(fleet.Device{}), "ours", "others", "free") + "; below it, over time"},
		{"COMMAND", "what the process held over time"},
		{"TAG", legend(ofTag(stats.Tag{}), "held", "contents kept", "not kept")},
		{"LIVE", "allocated, active and paused"},
		{"HELD", "device memory now"},
		{"BACKUP", "what holds contents"},
	} {
		first := about[0]
		for line := range strings.SplitSeq(ansi.Wordwrap(about[1], m.width-keyWidth, ""), "\n") {
			lines = append(lines, ansi.Truncate(m.fit(first, keyWidth)+line, m.width, ""))
			first = ""
		}
	}
	return append(lines[:min(len(lines), m.height-1)], faint.Render("h or any other key goes back"))
}
