package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

// model is everything that the screen shows.
type model struct {
	source   Source
	settings Settings
	steer    func(steer) tea.Cmd

	width, height int
	look          Look // for processes that do not answer, their last answer
	seen          bool // whether there has been a look
	past          map[key]history
	events        []event

	order    int // of orderings
	filter   string
	typing   bool // the filter
	help     bool
	selected key
	line     int            // of the selected row, so that the selection stays near when the row has gone
	under    map[int]string // requests to processes that they have not carried out yet
	message  string         // about what was asked, until the next key
	failed   bool           // it reports a failure
}

const (
	mostEvents = 100
	unseen     = -1 // the device of a row that is a whole process
)

// key names a row, whatever line it is on.
type key struct {
	pid, device int
	tag         string
}

// row is a process, or one of its tags.
type row struct {
	key
	process *fleet.Process
	figures figures
	whole   bool         // it is the process
	on      stats.Device // of a tag
}

func newModel(source Source, settings Settings) *model {
	return &model{source: source, settings: settings, width: 80, height: 24, under: map[int]string{}}
}

// orderings are what rows can be sorted by.
var orderings = []struct {
	name    string
	compare func(x, y fleet.Process) int
}{
	{"most held", func(x, y fleet.Process) int { return cmp.Compare(y.Held(), x.Held()) }},
	{"longest paused", func(x, y fleet.Process) int { return pausedSince(&x).Compare(pausedSince(&y)) }},
	{"number", func(x, y fleet.Process) int { return cmp.Compare(x.PID, y.PID) }},
	{"command", func(x, y fleet.Process) int { return cmp.Compare(x.Command, y.Command) }},
}

func matches(p *fleet.Process, filter string) bool {
	text := fmt.Sprint(p.PID, " ", p.Short(), " ", p.Command)
	for _, t := range p.Tags() {
		text += " " + t.Tag
	}
	return strings.Contains(strings.ToLower(text), strings.ToLower(filter))
}

// rows returns all rows that pass the filter, sorted.
func (m *model) rows() (rows []row) {
	for i := range m.look.Processes {
		p := &m.look.Processes[i]
		if !matches(p, m.filter) {
			continue
		}
		rows = append(rows, row{key{p.PID, unseen, ""}, p, sum(p, m.look.At), true, stats.Device{}})
		for d, t := range p.Tags() {
			rows = append(rows, row{key{p.PID, d.Device, t.Tag}, p, figuresOf(p, d, t, m.look.At), false, d})
		}
	}
	return rows
}

func (m *model) Init() tea.Cmd { return m.ask }

func (m *model) ask() tea.Msg { return m.source.Look() }

type again struct{}

func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = message.Width, message.Height
	case Look:
		m.take(message)
		return m, tea.Tick(every, func(time.Time) tea.Msg { return again{} })
	case again:
		return m, m.ask
	case steered:
		delete(m.under, message.pid)
		m.message, m.failed = message.text(), message.err != nil
	case tea.KeyPressMsg:
		return m, m.press(message)
	}
	return m, nil
}

// take shows look from now on.
func (m *model) take(look Look) {
	for i := range look.Processes {
		now := &look.Processes[i]
		was := slices.IndexFunc(m.look.Processes, func(p fleet.Process) bool { return p.PID == now.PID })
		switch {
		case was < 0:
		case now.Error != "":
			pid, command := now.PID, now.Command
			now.ProcessState = m.look.Processes[was].ProcessState
			now.PID, now.Command = pid, cmp.Or(command, now.Command)
		default:
			m.events = append(m.events, changes(&m.look.Processes[was], now, look.At)...)
		}
	}
	m.events = m.events[max(0, len(m.events)-mostEvents):]
	m.look, m.seen = look, true
	m.remember()
	m.sort()
}

func (m *model) sort() {
	slices.SortFunc(m.look.Processes, func(x, y fleet.Process) int {
		return cmp.Or(orderings[m.order].compare(x, y), cmp.Compare(x.PID, y.PID))
	})
	m.keepSelected()
}

// keepSelected keeps the selection on an existing row: the same row, or else the row in its place.
func (m *model) keepSelected() {
	rows := m.rows()
	if line := slices.IndexFunc(rows, func(r row) bool { return r.key == m.selected }); line >= 0 {
		m.line = line
	}
	m.move(0)
}

func (m *model) move(lines int) {
	rows := m.rows()
	m.line, m.selected = max(0, min(m.line+lines, len(rows)-1)), key{}
	if len(rows) > 0 {
		m.selected = rows[m.line].key
	}
}

func (m *model) press(pressed tea.KeyPressMsg) tea.Cmd {
	name := pressed.String()
	switch name {
	case "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return suspend
	}
	if m.typing {
		m.write(name, pressed.Text)
		return nil
	}
	if m.help { // any key ends it
		m.help = false
		return nil
	}
	m.message = ""
	switch name {
	case "q":
		return tea.Quit
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-10)
	case "pgdown":
		m.move(10)
	case "home":
		m.move(-m.line)
	case "end":
		m.move(len(m.rows()))
	case "p":
		return m.tell(steer{pause: true})
	case "r":
		return m.tell(steer{})
	case "s":
		m.order = (m.order + 1) % len(orderings)
		m.sort()
	case "/":
		m.typing = true
	case "esc":
		m.filter = ""
		m.keepSelected()
	case "?", "h":
		m.help = true
	}
	return nil
}

// write edits the filter.
func (m *model) write(name, text string) {
	switch name {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		if letters := []rune(m.filter); len(letters) > 0 {
			m.filter = string(letters[:len(letters)-1])
		}
	default:
		m.filter += readable.Printable(text)
	}
	m.keepSelected()
}

// steer asks a process to pause or resume a tag, or all.
type steer struct {
	pause bool
	pid   int
	tag   string
}

// steered is the outcome.
type steered struct {
	steer
	words string
	err   error
}

// tell makes the selected process do it, unless the process is doing something already.
func (m *model) tell(s steer) tea.Cmd {
	s.pid, s.tag = m.selected.pid, m.selected.tag
	if s.pid == 0 {
		m.message, m.failed = "there is no process to pause or resume", true
		return nil
	}
	if doing, ok := m.under[s.pid]; ok {
		m.message, m.failed = fmt.Sprintf("%d: it is still %s", s.pid, doing), true
		return nil
	}
	m.under[s.pid] = map[bool]string{true: "pausing", false: "resuming"}[s.pause]
	m.message, m.failed = fmt.Sprintf("%d: %s ...", s.pid, m.under[s.pid]), false
	return m.steer(s)
}

func (s steer) do(ctx context.Context, source Source) steered {
	told := source.Resume
	if s.pause {
		told = source.Pause
	}
	words, err := told(ctx, s.pid, s.tag)
	return steered{s, words, err}
}

func (s steered) text() string {
	words := s.words
	if s.err != nil {
		words = s.err.Error()
	}
	return fmt.Sprintf("%d: %s", s.pid, words)
}
