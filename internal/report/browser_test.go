package report_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/report"
)

var writePicture = flag.Bool("write-picture", false, "write docs/report.png and docs/rl-step.png again")

// browser is a headless Chromium, driven over pipes by its DevTools protocol.
type browser struct {
	t       *testing.T
	to      io.Writer
	from    *bufio.Reader
	id      int
	session string
	faults  []string // errors on the console, and the page's requests
	loaded  []string
}

// names are the names that distributions give it. scripts/check.sh installs the first.
var names = []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	program := hermetic.Program(t, names...)
	// Chromium refuses its own sandbox to root; the page is ours.
	command := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--no-first-run",
		"--disable-dev-shm-usage", "--force-color-profile=srgb", "--user-data-dir="+t.TempDir(),
		"--remote-debugging-pipe", "about:blank")
	theirs, to, err := os.Pipe()
	require.NoError(t, err)
	from, answers, err := os.Pipe()
	require.NoError(t, err)
	command.ExtraFiles = []*os.File{theirs, answers} // descriptors 3 and 4
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var words bytes.Buffer
	command.Stderr = &words
	require.NoError(t, command.Start())
	_, _ = theirs.Close(), answers.Close()
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
		_, _ = to.Close(), from.Close()
		if t.Failed() {
			t.Log(words.String())
		}
	})
	require.NoError(t, from.SetReadDeadline(time.Now().Add(2*time.Minute)))
	b := &browser{t: t, to: to, from: bufio.NewReader(from)}
	var target struct{ TargetID, SessionID string }
	b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	b.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	b.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.do(domain+".enable", nil, nil)
	}
	return b
}

// do calls a method, and reads its result to result, if that is not nil.
func (b *browser) do(method string, parameters map[string]any, result any) {
	b.t.Helper()
	b.id++
	request := map[string]any{"id": b.id, "method": method, "params": parameters}
	if parameters == nil {
		request["params"] = map[string]any{}
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	line, err := json.Marshal(request)
	require.NoError(b.t, err)
	_, err = b.to.Write(append(line, 0))
	require.NoError(b.t, err)
	for {
		line, err := b.from.ReadBytes(0)
		require.NoError(b.t, err, method)
		var message struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		require.NoError(b.t, json.Unmarshal(line[:len(line)-1], &message))
		b.note(message.Method, message.Params)
		if message.ID == b.id {
			require.Nil(b.t, message.Error, "%s: %v", method, message.Error)
			if result != nil {
				require.NoError(b.t, json.Unmarshal(message.Result, result))
			}
			return
		}
	}
}

func (b *browser) note(method string, parameters json.RawMessage) {
	var event struct {
		Type    string
		Entry   struct{ Level string }
		Request struct{ URL string }
	}
	_ = json.Unmarshal(parameters, &event)
	switch {
	case method == "Runtime.exceptionThrown", method == "Runtime.consoleAPICalled" && event.Type != "log",
		method == "Log.entryAdded" && event.Entry.Level == "error":
		b.faults = append(b.faults, method+": "+string(parameters))
	case method == "Network.requestWillBeSent" && !strings.HasPrefix(event.Request.URL, "data:"):
		b.loaded = append(b.loaded, event.Request.URL)
	}
}

// value evaluates an expression in the page.
func (b *browser) value(expression string) (value any) {
	b.t.Helper()
	var found struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	b.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &found)
	require.Nil(b.t, found.ExceptionDetails, expression)
	return found.Result.Value
}

func (b *browser) eventually(expression string) {
	b.t.Helper()
	for until := time.Now().Add(30 * time.Second); b.value(expression) != true; time.Sleep(20 * time.Millisecond) {
		require.True(b.t, time.Now().Before(until), "never: %s", expression)
	}
}

// drawn waits until the changes that act makes are on the screen.
func (b *browser) drawn(act func()) {
	b.t.Helper()
	before := b.value("document.querySelector('main').dataset.drawn || '0'")
	act()
	b.eventually(fmt.Sprintf("Number(document.querySelector('main').dataset.drawn || 0) > %v", before))
}

func (b *browser) press(key string) {
	b.t.Helper()
	b.drawn(func() {
		b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key}, nil)
		b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
	})
}

func (b *browser) mouse(kind string, x, y, wheel float64) {
	b.t.Helper()
	b.do("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "deltaX": 0, "deltaY": wheel}, nil)
}

func (b *browser) view() (from, to float64) {
	b.t.Helper()
	view := b.value("[Number(document.querySelector('main').dataset.from), " +
		"Number(document.querySelector('main').dataset.to)]").([]any)
	return view[0].(float64), view[1].(float64)
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	b.do("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}}}, nil)
}

func (b *browser) picture(path string, clip map[string]any) image.Image {
	b.t.Helper()
	var found struct{ Data string }
	parameters := map[string]any{"format": "png"}
	if clip != nil {
		parameters["clip"], parameters["captureBeyondViewport"] = clip, true
	}
	b.do("Page.captureScreenshot", parameters, &found)
	data, err := base64.StdEncoding.DecodeString(found.Data)
	require.NoError(b.t, err)
	require.NoError(b.t, os.MkdirAll(filepath.Dir(path), 0o777))
	require.NoError(b.t, os.WriteFile(path, data, 0o666))
	decoded, err := png.Decode(bytes.NewReader(data))
	require.NoError(b.t, err)
	return decoded
}

const width, height = 1240, 900

func (b *browser) open(t *testing.T, paths ...string) {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, report.WritePage(&page, paths))
	file := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(file, page.Bytes(), 0o600))
	b.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": false}, nil)
	b.faults, b.loaded = nil, nil
	b.do("Page.navigate", map[string]any{"url": "file://" + file}, nil)
	b.eventually("document.readyState == 'complete' && Number(document.querySelector('main').dataset.drawn || 0) > 0")
}

// colours counts the colours of a lane's canvas; an empty one has one.
const colours = `(() => { const c = document.querySelectorAll("canvas")[%d];
	const words = new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer);
	return new Set(words).size; })()`

func TestInABrowser(t *testing.T) {
	b := startBrowser(t)
	b.scheme("light")
	b.open(t, rollout(t)...)
	require.Equal(t, float64(3), b.value("document.querySelectorAll('canvas').length"), "both together, and each")
	require.Equal(t, []any{false, false}, b.value("[...document.querySelectorAll('details')].map(d => d.open)"),
		"the processes come first")
	b.drawn(func() { b.value("document.querySelectorAll('details').forEach(d => { d.open = true; })") })
	// with their addresses
	b.eventually("document.querySelectorAll('canvas').length == 5 && charts.every(c => c.plot.status == 1)")
	for canvas := range 5 {
		require.Greater(t, b.value(fmt.Sprintf(colours, canvas)), float64(3), "canvas %d", canvas)
	}
	require.Equal(t, true, b.value("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the screen")

	if *writePicture {
		b.picture("../../docs/report.png", map[string]any{"x": 0, "y": 0, "width": width, "height": 1220,
			"scale": 1})
	}

	// Keys.
	from, to := b.view()
	require.Zero(t, from)
	before := b.value("document.querySelector('canvas').toDataURL()")
	b.press("+")
	nearFrom, nearTo := b.view()
	require.InDelta(t, (to-from)/2, nearTo-nearFrom, 1e-9)
	require.InDelta(t, (from+to)/2, (nearFrom+nearTo)/2, 1e-9)
	require.NotEqual(t, before, b.value("document.querySelector('canvas').toDataURL()"))
	b.press("ArrowRight")
	movedFrom, movedTo := b.view()
	require.InDelta(t, nearFrom+(to-from)/8, movedFrom, 1e-9)
	require.InDelta(t, nearTo-nearFrom, movedTo-movedFrom, 1e-9)
	b.press("m")
	require.Equal(t, "live", b.value("document.querySelector('main').dataset.metric"))
	b.press("n") // the first pause, whose text is below its lane
	require.Regexp(t, `^pause.* at .*: .* in .*GB/s, .*bounded by (driver calls|copying|waiting)$`,
		b.value("[...document.querySelectorAll('.read')].map(r => r.textContent).find(text => "+
			"text.includes('bounded'))"))
	b.press("0")
	wholeFrom, wholeTo := b.view()
	require.Equal(t, [2]float64{from, to}, [2]float64{wholeFrom, wholeTo})
	b.press("m")
	b.press("m") // physical again

	// The mouse: reading, the wheel, dragging.
	box := b.value("(() => { const r = document.querySelector('canvas').getBoundingClientRect(); return [r.left, " +
		"r.top, r.width, r.height]; })()").([]any)
	left, top := box[0].(float64), box[1].(float64)
	middle := left + box[2].(float64)/2
	b.mouse("mouseMoved", middle, top+100, 0)
	require.Regexp(t, `: physical [\d.]+ .iB`, b.value("document.querySelector('.read').textContent"))
	values := "[...document.querySelectorAll('.card')[%d].querySelectorAll('.u-value')].map(value => " +
		"value.textContent).join(', ')"
	for lane := range 3 { // all lanes at the same moment
		require.Regexp(t, `, [\d.]+ .?i?B, `, b.value(fmt.Sprintf(values, lane)))
	}
	b.drawn(func() { b.mouse("mouseWheel", middle, top+100, -100) })
	wheelFrom, wheelTo := b.view()
	require.Less(t, wheelTo-wheelFrom, to-from)
	b.press("0")
	b.drawn(func() {
		for i, kind := range []string{"mousePressed", "mouseMoved", "mouseReleased"} {
			b.do("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": middle + 50*float64(min(i, 1)),
				"y":      top + 100,
				"button": "left", "buttons": 1, "clickCount": 1}, nil)
		}
	})
	b.eventually("charts.length == 5 && charts.every(c => c.plot.scales.x.min == view.from && c.plot.scales.x.max " +
		"== view.to)")
	dragFrom, dragTo := b.view()
	require.InDelta(t, b.value("charts[0].plot.over.clientWidth / 50").(float64), (to-from)/(dragTo-dragFrom), 0.5)
	b.press("0")

	light := b.picture("../../build/pictures/report-light.png", nil)
	b.drawn(func() { b.scheme("dark") })
	dark := b.picture("../../build/pictures/report-dark.png", nil)
	brightness := func(i image.Image) uint32 { r, g, b, _ := i.At(2, 2).RGBA(); return (r + g + b) / 3 >> 8 }
	require.Greater(t, brightness(light), uint32(200))
	require.Less(t, brightness(dark), uint32(60))
	require.Greater(t, b.value(fmt.Sprintf(colours, 0)), float64(3))

	b.do("Runtime.evaluate", map[string]any{"expression": "1"}, nil) // every earlier message has come by now
	require.Empty(t, b.faults)
	require.Len(t, b.loaded, 1, "the page itself, and nothing else")
}

// Processes take turns: a glance shows what belongs to which, and each process's pauses have a row of their own.
func TestTurnsInABrowser(t *testing.T) {
	b := startBrowser(t)
	b.scheme("light")
	b.open(t, rl...)
	names := "[...document.querySelectorAll('.card')[0].querySelectorAll('.key, .u-label')].map(key => key.textContent)"
	require.Equal(t, []any{"pause", "resume", "Value", "3707 sglang::scheduler (kv_cache, weights), at most 72.1 GiB",
		"3578 python3 -c (trainer), at most 18.1 GiB", "at least"}, b.value(names))
	// A process has one colour on the whole page, and no two processes or tags have the same.
	const ofAll = "lanes[0].series.map(colourOf)"
	require.Equal(t, b.value(ofAll), b.value("lanes.slice(1).map(lane => lane.series.filter(s => !s.plain).map(colourOf)[0])"))
	require.Equal(t, true, b.value("[0, 1].every(i => getComputedStyle(document.querySelectorAll('h2 .mark')[i])."+
		"backgroundColor == getComputedStyle([...document.querySelectorAll('td .mark')].find(m => "+
		"m.parentElement.textContent == data.processes[i].pid)).backgroundColor)"))
	require.Equal(t, true, b.value("(all => new Set(all).size == all.length)(lanes.slice(1).flatMap(lane => "+
		"lane.series.filter(s => !s.plain).map(colourOf)))"))
	require.Equal(t, []any{}, b.value("[...document.querySelectorAll('th')].filter(th => !th.textContent)"), "names")
	b.drawn(func() { b.value("look(45, 52.845)") })
	if *writePicture {
		height := b.value("document.querySelectorAll('.card')[2].getBoundingClientRect().bottom").(float64) + 14
		b.picture("../../docs/rl-step.png", map[string]any{"x": 0, "y": 0, "width": width, "height": height,
			"scale": 1})
	}
	// Where both are busy, each row shows its own.
	box := b.value("(() => { const r = document.querySelector('.u-over').getBoundingClientRect(); return [r.left, " +
		"r.top]; })()").([]any)
	for row, words := range []string{"^pause trainer at 45.134 s: 15.4 GiB in 674 ms, 24.57 GB/s",
		"^resume kv_cache at 45.809 s: 69.7 GiB in 34.84 ms, 2148 GB/s"} {
		x := b.value(fmt.Sprintf("charts[0].plot.valToPos(%v, 'x')", []float64{45.7, 45.82}[row])).(float64)
		b.mouse("mouseMoved", box[0].(float64)+x, box[1].(float64)+float64(8+16*row), 0)
		require.Regexp(t, words, b.value("document.querySelector('.read').textContent"))
	}
	require.Empty(t, b.faults)
	// On a telephone nothing is wider than the screen.
	b.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": 400, "height": height, "deviceScaleFactor": 1,
		"mobile": false}, nil)
	b.eventually("innerWidth == 400 && document.documentElement.scrollWidth <= 400")
}

// A large page is ready soon, and stays responsive.
func TestAMillionEventsInABrowser(t *testing.T) {
	hermetic.Thorough(t)
	if testing.Short() {
		t.Skip("-short is for the race detector, and there is one thread")
	}
	r, _ := busy(6, 1_000_000, 30)
	b := startBrowser(t)
	b.open(t, r.write(t, "busy.trace"))
	for canvas := range 2 {
		require.Greater(t, b.value(fmt.Sprintf(colours, canvas)), float64(5))
	}
	for range 6 {
		b.press("+")
	}
	b.picture("../../build/pictures/report-busy.png", nil)
	from, to := b.view()
	require.InDelta(t, b.value("data.duration").(float64)/64, to-from, 1e-6)
	require.Empty(t, b.faults)
}
