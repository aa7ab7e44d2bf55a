package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

const (
	mib = 1 << 20
	gib = 1 << 30
)

// told is a source that notes its calls.
type told struct {
	look  Look
	calls []string
	err   error
}

func (s *told) Look() Look { return s.look }

func (s *told) do(what string, pid int, tag string) (string, error) {
	s.calls = append(s.calls, fmt.Sprint(what, " ", pid, " ", tag))
	return what + "d", s.err
}

func (s *told) Pause(_ context.Context, pid int, tag string) (string, error) {
	return s.do("pause", pid, tag)
}

func (s *told) Resume(_ context.Context, pid int, tag string) (string, error) {
	return s.do("resume", pid, tag)
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// aMoment returns a server that serves, a trainer that is half paused, and a process that does not answer.
func aMoment() Look {
	look := Look{
		At: noon,
		Devices: []fleet.Device{
			{Label: "0 H200", Total: 141 * gib, Ours: 96 * gib, Others: 12 * gib, Free: 33 * gib},
			{Label: "1 H200", Total: 141 * gib, Free: 141 * gib},
		},
		Processes: []fleet.Process{
			process(4711, "/usr/bin/python3 serve.py --port 8000",
				tag{Name: "weights", Live: 60 * gib, Held: 60 * gib, Backup: 60 * gib, Where: "host"},
				tag{Name: "cache", Live: 30 * gib, Held: 30 * gib},
			),
			process(815, "python train.py",
				tag{Name: "model", Live: 6 * gib, Held: 6 * gib},
				tag{Name: "optimizer", Live: 24 * gib, Paused: 24 * gib, Backup: 24 * gib,
					Where: "disk", LastPause: 0.84, PausedSince: noon.Add(-5 * time.Second)},
				tag{Device: 1, Name: "scratch", Live: 8 * gib, Paused: 8 * gib, LastPause: 0.002,
					LastResume: 0.03, PausedSince: noon.Add(-3 * time.Minute)},
			),
			{ProcessState: control.ProcessState{PID: 99}, Error: "it does not answer (stopped?)"},
		},
	}
	look.Processes[1].Cgroup.Container = "1a2b3c4d"
	return look
}

type tester struct {
	*model
	t      *testing.T
	source *told
}

func start(t *testing.T, look Look, settings Settings) *tester {
	source := &told{look: look}
	m := newModel(source, settings)
	m.steer = func(s steer) tea.Cmd {
		return func() tea.Msg { return s.do(context.Background(), source) }
	}
	v := &tester{m, t, source}
	v.Update(m.Init()())
	return v
}

var named = map[string]tea.Key{"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "enter": {Code: tea.KeyEnter},
	"esc": {Code: tea.KeyEscape}, "backspace": {Code: tea.KeyBackspace}, "end": {Code: tea.KeyEnd},
	"home": {Code: tea.KeyHome}, "pgdown": {Code: tea.KeyPgDown}, "pgup": {Code: tea.KeyPgUp},
	"ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+z": {Code: 'z', Mod: tea.ModCtrl}}

// press presses keys one after another, and returns the command of the last.
func (v *tester) press(keys ...string) (then tea.Cmd) {
	for _, name := range keys {
		k, ok := named[name]
		if !ok {
			k = tea.Key{Code: []rune(name)[0], Text: name}
		}
		_, then = v.Update(tea.KeyPressMsg(k))
	}
	return then
}

var escapes = regexp.MustCompile(`\x1b\[[0-9;:]*m`)

func (v *tester) plain() string { return escapes.ReplaceAllString(v.View().Content, "") }

func (v *tester) lines() []string {
	lines := strings.Split(v.plain(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

func (v *tester) shows(words string) {
	v.t.Helper()
	require.Contains(v.t, v.plain(), words)
}

func (v *tester) size(width, height int) {
	v.Update(tea.WindowSizeMsg{Width: width, Height: height})
}

func TestScreenOf80By24(t *testing.T) {
	v := start(t, aMoment(), Settings{})
	v.press("down", "down")
	require.Equal(t, `tms top  3 processes, sorted by most held                               12:00:00
DEVICE           █ ours  ▒ others  · free        OURS     FREE   OTHERS    TOTAL
0 H200           ██████████████████▒▒▒······ 96.0 GiB 33.0 GiB 12.0 GiB  141 GiB
  used 54s                                 ▆
1 H200           ···························        0  141 GiB        0  141 GiB
  used 54s                                 ·
      PID COMMAND, TAG       last 24s         LIVE     HELD   BACKUP STATE
     4711 python3 serve.py …            █ 90.0 GiB 90.0 GiB 60.0 GiB active
    GPU 0   weights          ████████     60.0 GiB 60.0 GiB 60.0 GiB active
>   GPU 0   cache            ████         30.0 GiB 30.0 GiB        0 active
      815 1a2b3c4d: python …            ▁ 38.0 GiB 6.00 GiB 24.0 GiB partly
    GPU 0   model            █            6.00 GiB 6.00 GiB        0 active
    GPU 0   optimizer        ▒▒▒          24.0 GiB        0 24.0 GiB paused 5s
    GPU 1   scratch          ░            8.00 GiB        0        0 paused 3m
       99                                        0        0        0 no answer






pauses and resumes are listed here as they happen
cache: paused 0, slack 0, backup 0; GPU-0
↑↓ select  p pause  r resume  s sort  / filter  h help  q quit`, strings.Join(v.lines(), "\n"))
}

// On a terminal that shows ASCII alone there is nothing else, and the parts of bars still differ.
func TestScreenInASCII(t *testing.T) {
	v := start(t, aMoment(), Settings{ASCII: true})
	v.shows("0 H200           ##################+++...... 96.0 GiB")
	v.shows("815 1a2b3c4d: python ~            _ 38.0 GiB")
	v.shows("optimizer        +++          24.0 GiB")
	v.press("?")
	v.shows("## held  ++ contents kept  -- not kept")
	v.press("x")
	for _, r := range v.plain() {
		require.Less(t, r, rune(0x7f), "%q", r)
	}
}

func TestScreenOf40By10(t *testing.T) {
	v := start(t, aMoment(), Settings{})
	v.size(40, 10)
	v.press("end", "up", "up")
	require.Equal(t, `tms top  3 processes, sorted b… 12:00:00
DEVICE     █ ours  ▒ …     OURS     FREE
0 H200     ███████▒··· 96.0 GiB 33.0 GiB
1 H200     ···········        0  141 GiB
      PID 5-7 of 8      HELD STATE
    GPU 0   model   6.00 GiB active
>   GPU 0   optimi…        0 paused 5s
    GPU 1   scratch        0 paused 3m
optimizer: paused 24.0 GiB, slack 0, ba…
p pause  r resume  s  /  h help  q quit`, strings.Join(v.lines(), "\n"))
}

// h shows the help and hides it, and all of it can be read on a small terminal, too.
func TestHelp(t *testing.T) {
	v := start(t, aMoment(), Settings{})
	screen := v.plain()
	for _, width := range []int{80, 40} {
		v.size(width, 24)
		v.press("h")
		for _, words := range []string{"pause, as tms pause does; never", "most held", "q        quit", "contents kept",
			"\nBACKUP   what holds contents\n"} {
			v.shows(words)
		}
		require.Regexp(t, `h or any other key goes back$`, v.plain())
		v.press("h")
	}
	v.size(80, 24)
	require.Equal(t, screen, v.plain())
}

// The bars over time are the mean of four looks each, of the last spans of time, and a gap where there was no look.
func TestHistory(t *testing.T) {
	look := func(second float64, held, used uint64) Look {
		l := aMoment()
		l.At = noon.Add(time.Duration(second * float64(time.Second)))
		l.Processes, l.Devices = l.Processes[:1], l.Devices[:1]
		l.Processes[0] = process(4711, l.Processes[0].Command, tag{Name: "a", Live: 8 * gib, Held: held, Paused: 8*gib - held})
		l.Devices[0].Total, l.Devices[0].Free = 8*gib, 8*gib-used
		return l
	}
	v := start(t, look(0, 8*gib, 4*gib), Settings{})
	for _, l := range []Look{look(2, 8*gib, 8*gib), look(2.5, 0, 0), look(4, 0, 8*gib), look(8, gib, gib),
		look(10, 8*gib, 8*gib)} {
		v.source.look = l
		v.Update(v.ask())
	}
	v.shows("  used 54s                            ▄▄█ ▁█\n")
	v.shows("4711 python3 serve.py …       █▄· ▁█ 8.00 GiB")
	v.source.look = look(10.5, 0, 0)
	v.source.look.Processes[0].Error = "it does not answer"
	v.Update(v.ask())
	v.shows("  used 54s                            ▄▄█ ▁▄\n")
	v.shows("4711 python3 serve.py …       █▄· ▁█ 8.00 GiB")
	v.source.look = look(1000, 8*gib, 8*gib)
	v.Update(v.ask())
	v.shows("4711 python3 serve.py …            █ 8.00 GiB")
	for i := range 4 * mostSamples {
		v.source.look = look(1000+float64(i), 8*gib, 8*gib)
		v.Update(v.ask())
	}
	require.Len(t, v.past[key{pid: 4711, device: unseen}], mostSamples)
	v.source.look = Look{At: noon.Add(time.Hour)}
	v.Update(v.ask())
	require.Empty(t, v.past, "what has gone is forgotten")
}

// Nothing is wider or longer than the terminal, whatever the terminal's size and the processes' names are.
func TestAllSizes(t *testing.T) {
	look := aMoment()
	look.Note = strings.Repeat("note ", 100)
	look.Processes[0].Command = "/bin/\x1b[2J\r\n字" + strings.Repeat("字", 100)
	look.Processes[0].Stats.Devices[0].Tags[0].Tag = "größe" + strings.Repeat("字", 50)
	look.Processes[1].Stats.Devices[0].Tags[1].PausedSince = -3e9
	for range 20 {
		look.Devices = append(look.Devices, fleet.Device{Label: strings.Repeat("字", 30), Total: 1})
	}
	widths := []int{1, 2, 10, 35, 36, 37, 38, 39, 40, 41, 55, 63, 64, 71, 72, 73, 79, 80, 81, 110, 200}
	for _, settings := range []Settings{{}, {ASCII: true}} {
		v := start(t, look, settings)
		v.press("p")
		for _, height := range []int{1, 7, 8, 9, 10, 24, 59} {
			for _, width := range widths {
				v.size(width, height)
				for range 2 {
					lines := strings.Split(v.View().Content, "\n")
					require.LessOrEqual(t, len(lines), height)
					if width >= leastWidth && height >= leastHeight && !v.help {
						require.Len(t, lines, height)
						require.True(t, height < 8 || strings.Contains(v.plain(), ">"), "the selected row is seen")
					}
					for _, line := range lines {
						require.LessOrEqual(t, lipgloss.Width(line), width, "%d x %d: %q", width, height, line)
						require.NotContains(t, escapes.ReplaceAllString(line, ""), "\x1b")
					}
					v.press("?")
				}
			}
		}
	}
}

func TestKeys(t *testing.T) {
	v := start(t, aMoment(), Settings{})
	do := func(then tea.Cmd) {
		t.Helper()
		require.NotNil(t, then)
		v.Update(then())
	}
	do(v.press("p"))
	v.shows("4711: paused")
	do(v.press("down", "r"))
	v.press("up", "up", "end")
	v.source.err = errors.New("a stream is being captured")
	do(v.press("p"))
	v.shows("99: a stream is being captured")
	do(v.press("pgup", "home", "down", "down", "down", "down", "p"))
	require.Equal(t, []string{"pause 4711 ", "resume 4711 weights", "pause 99 ", "pause 815 model"}, v.source.calls)

	under := v.press("r")
	require.NotNil(t, under)
	v.shows("815: resuming ...")
	require.Nil(t, v.press("down", "p"))
	v.shows("815: it is still resuming")
	do(under)
	do(v.press("p"))
	v.press("up")
	require.NotContains(t, v.plain(), "captured", "the next key takes the words away")

	for _, name := range []string{"q", "ctrl+c"} {
		require.Equal(t, tea.Quit(), v.press(name)())
	}
	for _, at := range [][]string{{"ctrl+z"}, {"h", "ctrl+z"}, {"x", "/", "ctrl+z"}} {
		require.IsType(t, suspend(), v.press(at...)(), "wherever it is pressed")
	}
	v.press("esc")
	empty := start(t, Look{At: noon}, Settings{})
	require.Nil(t, empty.press("down", "up", "p"))
	empty.shows("there is no process to pause or resume")
	empty.shows("no process of this user listens")
}

func TestSorting(t *testing.T) {
	v := start(t, aMoment(), Settings{})
	order := func() (pids []int) {
		for _, p := range v.look.Processes {
			pids = append(pids, p.PID)
		}
		return pids
	}
	for name, want := range map[string][]int{"most held": {4711, 815, 99}, "longest paused": {815, 99, 4711},
		"number": {99, 815, 4711}, "command": {99, 4711, 815}} {
		for orderings[v.order].name != name {
			v.press("s")
		}
		require.Equal(t, want, order(), name)
		v.shows("sorted by " + name)
		require.Equal(t, 4711, v.selected.pid, "what is selected stays so, wherever it is")
	}
	for orderings[v.order].name != "number" {
		v.press("s")
	}
	v.press("home")
	require.Equal(t, 99, v.selected.pid)
	v.source.look = aMoment()
	v.source.look.Processes = v.source.look.Processes[:2] // it ends
	v.Update(v.ask())
	require.Equal(t, 815, v.selected.pid, "what is in its place is selected")
}

func TestFiltering(t *testing.T) {
	v := start(t, aMoment(), Settings{})
	v.press("/", "S", "c", "r", "ö", "backspace")
	v.shows("/Scr_")
	require.Equal(t, 815, v.selected.pid, "by a tag's name")
	require.NotContains(t, v.plain(), "4711")
	v.press("q", "p")
	v.shows("no process has that in its number, command or tags")
	require.Empty(t, v.source.calls, "keys are letters while it is typed")
	v.press("backspace", "backspace", "enter")
	v.shows(`with "Scr"`)
	v.press("esc")
	v.shows("4711")
	v.press("/", "8", "1", "5", "esc")
	v.shows("4711")
}

// A process that does not answer stays where it is, with its last answer.
func TestNoAnswer(t *testing.T) {
	v := start(t, aMoment(), Settings{})
	v.source.look = aMoment()
	v.source.look.Processes[0] = fleet.Process{ProcessState: control.ProcessState{PID: 4711},
		Error: "it does not answer (stopped?)"}
	v.Update(v.ask())
	v.shows("4711 python3 serve.py …            █ 90.0 GiB 90.0 GiB 60.0 GiB no answer")
	v.shows("4711: it does not answer (stopped?)")
	v.source.look = aMoment()
	v.Update(v.ask())
	v.shows("4711 python3 serve.py …            █ 90.0 GiB 90.0 GiB 60.0 GiB active")
	require.Empty(t, v.events)
}

func TestWorking(t *testing.T) {
	look := aMoment()
	look.Processes[0].Doing = "pause"
	look.Processes[0].Stats.Devices[0].Progress = &stats.Progress{Operation: "pause", Done: 15 * gib, Total: 60 * gib}
	v := start(t, look, Settings{})
	v.shows("GPU 0   cache            ████         30.0 GiB 30.0 GiB        0 pausing 25%")
	v.shows("90.0 GiB 90.0 GiB 60.0 GiB pausing")
}

func TestEvents(t *testing.T) {
	python := func(tags ...tag) fleet.Process { return process(815, "python", tags...) }
	with := func(name string, paused uint64, pause, resume float64) tag {
		return tag{Name: name, Paused: paused, LastPause: pause, LastResume: resume}
	}
	one, both := python(with("a", 0, 0, 0)), python(with("a", 0, 0, 0), with("b", 0, 0, 0))
	limited := func(refused uint64) fleet.Process {
		p := python(with("a", 0, 0, 0))
		p.Stats.Devices[0].LimitBytes, p.Stats.Devices[0].LimitRefused = 40*gib, refused
		return p
	}
	for name, c := range map[string]struct {
		before, now fleet.Process
		want        []string
	}{
		"nothing": {python(with("a", 3*gib, 1, 1)), python(with("a", 3*gib, 1, 1)), nil},
		"one operation of two tags": {both, python(with("a", 3*gib, 0.5, 0), with("b", gib, 0.5001, 0)),
			[]string{"paused a, b on GPU 0: 4.00 GiB in 0.50 s, 8.6 GB/s"}},
		"two operations": {both, python(with("a", 3*gib, 0.5, 0), with("b", gib, 2, 0)),
			[]string{"paused a on GPU 0: 3.00 GiB in 0.50 s, 6.4 GB/s", "paused b on GPU 0: 1.00 GiB in 2.00 s, 0.5 GB/s"}},
		"a resume": {python(with("a", 3*gib, 1, 0)), python(with("a", 0, 1, 0.05)),
			[]string{"resumed a on GPU 0: 3.00 GiB in 0.0500 s, 64.4 GB/s"}},
		"there and back": {one, python(with("a", 0, 1, 2)),
			[]string{"paused a on GPU 0 in 1.00 s", "resumed a on GPU 0 in 2.00 s"}},
		"back and there": {python(with("a", 2*gib, 1, 1)), python(with("a", gib, 2, 2)),
			[]string{"resumed a on GPU 0: 2.00 GiB in 2.00 s, 1.1 GB/s", "paused a on GPU 0: 1.00 GiB in 2.00 s, 0.5 GB/s"}},
		"freed since":      {python(with("a", 3*gib, 1, 0)), python(), nil},
		"new, and paused":  {python(), python(with("a", 3*gib, 1, 0)), nil},
		"freed, in part":   {python(with("a", 3*gib, 1, 0)), python(with("a", gib, 1, 0)), nil},
		"at its limit":     {limited(1), limited(4), []string{"allocations refused by its limit of 40.0 GiB on GPU 0: 3"}},
		"another device's": {one, python(tag{Name: "a", Device: 1, Paused: gib, LastPause: 1}), nil},
	} {
		var texts []string
		for _, e := range changes(&c.before, &c.now, noon) {
			require.Contains(t, e.String(), "12:00:00     815 ")
			texts = append(texts, strings.TrimPrefix(e.String(), "12:00:00     815 "))
		}
		require.Equal(t, c.want, texts, name)
	}

	v := start(t, aMoment(), Settings{})
	for i := range 2 * mostEvents {
		v.source.look = aMoment()
		v.source.look.Processes[1] = python(with("model", uint64(i+1)*mib, float64(i+1), 0))
		v.Update(v.ask())
	}
	require.Len(t, v.events, mostEvents)
	v.shows("paused model on GPU 0: 1.00 MiB in 200.00 s")
}

// slow is a source whose pauses end when they are interrupted.
type slow struct {
	told
	pausing atomic.Bool
}

func (s *slow) Pause(ctx context.Context, _ int, _ string) (string, error) {
	s.pausing.Store(true)
	<-ctx.Done()
	return "", errors.New("interrupted")
}

// A user who quits in the middle of a pause sees its outcome.
// The line of a paused process says who keeps it paused, since when and until when, and so does an event.
func TestWhoKeepsAProcessPaused(t *testing.T) {
	look := aMoment()
	v := start(t, look, Settings{})
	v.size(160, 24)
	seconds := func(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }
	clock := func(at time.Time) string { return at.Local().Format(time.TimeOnly) }
	look.Processes = slices.Clone(look.Processes)
	trainer := slices.IndexFunc(look.Processes, func(p fleet.Process) bool { return p.PID == 815 })
	look.Processes[trainer].PausedBy = []control.LastingPause{
		{User: "anna", PID: 12, Since: seconds(noon.Add(-time.Minute)), Until: seconds(noon.Add(time.Hour)), To: "bert",
			Tags: []string{"optimizer"}},
		{User: "carl\x1b", PID: 13, Since: seconds(noon), Tags: []string{"scratch"}},
	}
	v.Update(look)
	lent := fmt.Sprintf("lent to bert until %s, by anna (process 12) since %s: optimizer; tms resume 815 takes the "+
		"memory back", clock(noon.Add(time.Hour)), clock(noon.Add(-time.Minute)))
	v.shows("    815 " + lent)
	v.shows("    815 paused by carl\ufffd (process 13) since " + clock(noon) + ": scratch; tms resume 815 continues it")

	v.Update(look) // the same pauses are no second event
	require.Equal(t, 2, strings.Count(v.plain(), "tms resume 815"))
	detail := func(row string) string {
		v.press("home")
		for range v.rows() {
			if v.selected.pid == 815 && v.selected.tag == row {
				break
			}
			v.press("down")
		}
		return strings.Join(v.detail(1), "")
	}
	require.Contains(t, detail(""), "815: "+lent)
	require.Contains(t, detail("optimizer"), "optimizer: "+lent)
	require.NotContains(t, detail("model"), "tms resume")
	require.NotContains(t, detail("scratch"), "bert")
}

func TestQuitting(t *testing.T) {
	for name, quit := range map[string]func(*os.File, context.CancelFunc){
		"by a key":    func(keys *os.File, _ context.CancelFunc) { _, _ = keys.WriteString("q") },
		"by a signal": func(_ *os.File, signal context.CancelFunc) { signal() },
	} {
		keys, press, err := os.Pipe()
		require.NoError(t, err)
		source := &slow{told: told{look: aMoment()}}
		ctx, signal := context.WithCancel(context.Background())
		go func() {
			for !source.pausing.Load() { // before the first look there is nothing to pause
				_, _ = press.WriteString("p")
				time.Sleep(10 * time.Millisecond)
			}
			quit(press, signal)
		}()
		interrupted, err := Run(ctx, source, Settings{}, keys, io.Discard)
		require.NoError(t, err, name)
		require.Equal(t, []string{"4711: interrupted"}, interrupted, name)
		signal()
		_, _ = keys.Close(), press.Close()
	}
}
