package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
)

// Processes that are steered from outside: testdata/steered.c does what a test says, and is paused and resumed over
// its socket, mostly through the package that cmd/tms uses.

const mib = 1 << 20

// steered is a running host.
type steered struct {
	t       *testing.T
	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  *bytes.Buffer
	reports string
}

// meeting returns a fresh directory with a path that is short enough for sockets.
func meeting(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("/tmp", "tms-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return directory
}

// sockets returns the folder in such a directory, where this process looks too.
func sockets(t *testing.T) string {
	t.Helper()
	directory := meeting(t)
	t.Setenv("XDG_RUNTIME_DIR", directory)
	t.Setenv("TMPDIR", t.TempDir())
	return filepath.Join(directory, "tms")
}

func steer(t *testing.T, program []string, environment ...string) *steered {
	t.Helper()
	command := exec.Command(program[0], program[1:]...)
	command.Env = hostEnvironment(t, append([]string{"CUDASIM_MEMORY=256M"}, environment...)...)
	h := &steered{t: t, command: command, stderr: new(bytes.Buffer), reports: filepath.Join(t.TempDir(), "report")}
	if sanitized {
		command.Env = sanitizedEnvironment(t, command.Env, program[len(program)-1], h.reports)
	}
	command.Stderr = h.stderr
	var err error
	h.stdin, err = command.StdinPipe()
	require.NoError(t, err)
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	h.stdout = bufio.NewReader(stdout)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return h
}

// controlled starts a host that has memory and listens.
func controlled(t *testing.T, environment ...string) *steered {
	t.Helper()
	h := steer(t, []string{compileWithDriver(t, "steered", majors[1])}, append(environment, "TMS_CONTROL=1")...)
	require.Equal(t, "ok", h.do("allocate"))
	h.listens()
	return h
}

// onlyControlled is controlled with a directory of its own.
func onlyControlled(t *testing.T, environment ...string) *steered {
	t.Helper()
	sockets(t)
	return controlled(t, environment...)
}

func (h *steered) pid() int { return h.command.Process.Pid }

// do sends the host a command, and returns its answer.
func (h *steered) do(words string) string {
	h.t.Helper()
	_, err := io.WriteString(h.stdin, words+"\n")
	require.NoError(h.t, err, "%s: %s", words, h.stderr)
	line, err := h.stdout.ReadString('\n')
	require.NoError(h.t, err, "%s: %s", words, h.stderr)
	return strings.TrimSuffix(line, "\n")
}

func (h *steered) number(words string) int {
	h.t.Helper()
	number, err := strconv.Atoi(h.do(words))
	require.NoError(h.t, err)
	return number
}

func until(t *testing.T, so func() bool) {
	t.Helper()
	require.Eventually(t, so, time.Minute, 5*time.Millisecond)
}

func listed(t *testing.T) []int {
	t.Helper()
	pids, err := client.List()
	require.NoError(t, err)
	return pids
}

func (h *steered) listens() {
	h.t.Helper()
	listens(h.t, h.pid())
}

func listens(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		pids, err := client.List()
		return err == nil && slices.Contains(pids, pid)
	}, time.Minute, 5*time.Millisecond)
}

// ends lets the host end by itself, and expects a line with each of these words.
func (h *steered) ends(words ...string) {
	h.t.Helper()
	require.NoError(h.t, h.stdin.Close())
	require.NoError(h.t, h.command.Wait(), "%s%s", h.stderr, findings(h.t, h.reports))
	require.Equal(h.t, len(words), strings.Count(h.stderr.String(), "\n"), "%s", h.stderr)
	for _, word := range words {
		require.Contains(h.t, h.stderr.String(), word)
	}
	require.Empty(h.t, findings(h.t, h.reports))
}

func (h *steered) dial() *client.Conn {
	h.t.Helper()
	return dial(h.t, h.pid())
}

func dial(t *testing.T, pid int) *client.Conn {
	t.Helper()
	connection, err := client.Dial(pid)
	require.NoError(t, err)
	t.Cleanup(connection.Close)
	return connection
}

func request(t *testing.T, c *client.Conn, r control.SteerRequest) control.Reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reply, err := c.Do(ctx, r)
	require.NoError(t, err)
	return reply
}

// well makes a request that succeeds.
func well(t *testing.T, c *client.Conn, r control.SteerRequest) control.Reply {
	t.Helper()
	reply := request(t, c, r)
	require.True(t, reply.OK, "%d %s", reply.Code, reply.Error)
	return reply
}

// gated returns a request that holds threads up and is not forced.
func gated(op, tag string) control.SteerRequest {
	r := control.SteerRequest{Op: op}
	if tag != "" {
		r.Tag = &tag
	}
	return r
}

func pauseOf(tag string) control.SteerRequest {
	r := gated(control.Pause, tag)
	r.Force = true
	return r
}

func resumeOf(tag string) control.SteerRequest { return gated(control.Resume, tag) }

func (h *steered) stateNow() (control.ProcessState, error) {
	c, err := client.Dial(h.pid())
	if err != nil {
		return control.ProcessState{}, err
	}
	defer c.Close()
	return c.Status(context.Background(), time.Minute)
}

func (h *steered) state() control.ProcessState {
	h.t.Helper()
	state, err := h.stateNow()
	require.NoError(h.t, err)
	return state
}

// pausedIn returns how many bytes of each tag are paused.
func pausedIn(state control.ProcessState) map[string]uint64 {
	found := map[string]uint64{}
	for _, d := range state.Stats.Devices {
		for _, tag := range d.Tags {
			if tag.PausedBytes > 0 {
				found[tag.Tag] += tag.PausedBytes
			}
		}
	}
	return found
}

func (h *steered) paused() map[string]uint64 {
	h.t.Helper()
	return pausedIn(h.state())
}

func (h *steered) eventually(want map[string]uint64) {
	h.t.Helper()
	require.EventuallyWithT(h.t, func(c *assert.CollectT) {
		state, err := h.stateNow()
		assert.NoError(c, err)
		assert.Equal(c, want, pausedIn(state))
	}, time.Minute, 5*time.Millisecond)
}

// does waits until the host is making such a request.
func (h *steered) does(op string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		state, err := h.stateNow()
		return err == nil && state.Doing == op
	}, time.Minute, 10*time.Millisecond)
}

var (
	bothPaused  = map[string]uint64{"weights": 24 * mib, "cache": 8 * mib}
	nonePaused  = map[string]uint64{}
	cachePaused = map[string]uint64{"cache": 8 * mib}
)

func TestPausedFromOutside(t *testing.T) {
	h := onlyControlled(t)
	before := h.do("free")
	c := h.dial()
	state := h.state()
	require.Equal(t, h.pid(), state.PID)
	require.Equal(t, h.command.Args[0], state.Command)
	require.Empty(t, state.Doing)
	require.Equal(t, uint64(32*mib), state.Stats.Devices[0].LiveBytes)

	refused := request(t, c, control.SteerRequest{Op: control.Pause})
	require.Equal(t, 801, refused.Code)
	require.Contains(t, refused.Error, "start the program with tms run")
	require.Contains(t, refused.Error, "or force the pause, while it is known")

	reply := well(t, c, pauseOf(""))
	require.Equal(t, uint64(32*mib), reply.Bytes)
	require.Positive(t, reply.Seconds)
	require.NotEqual(t, before, h.do("free"))
	require.Equal(t, bothPaused, h.paused())
	require.Zero(t, request(t, c, pauseOf("")).Bytes)

	require.Equal(t, uint64(24*mib), well(t, c, resumeOf("weights")).Bytes)
	require.Equal(t, cachePaused, h.paused())
	require.Equal(t, "ok", h.do("check"))
	require.Equal(t, uint64(8*mib), request(t, c, resumeOf("")).Bytes)
	require.Equal(t, before, h.do("free"))

	// Memory is short: the request is refused, then waits, then is withdrawn while it waits.
	request(t, c, pauseOf(""))
	h.do("hog")
	require.Equal(t, 2, request(t, c, resumeOf("")).Code)
	require.Equal(t, bothPaused, h.paused())
	waiting := resumeOf("")
	waiting.Wait = 60
	done := make(chan control.Reply)
	go func() { done <- request(t, c, waiting) }()
	h.does(control.Resume)
	const says = "tms: the resume of all tags waits for memory: device 0 " +
		"(GPU-63756461-7369-6d2d-6465-766963652d00) has 0 bytes free and 32.00 MiB are needed; "
	until(t, func() bool { return strings.Contains(h.stderr.String(), says) })
	h.do("unhog")
	reply = <-done
	require.True(t, reply.OK, reply.Error)
	h.ends(says)
}

// What the program said of live bytes ends with the next pause from outside, also where that is refused before the
// engine hears of it: the program may have other contents by the pause after that.
func TestRefusedPauseEndsWhatIsLive(t *testing.T) {
	h := onlyControlled(t, reaching(t))
	pause := gated(control.Pause, "")
	refused := func(change func(*control.SteerRequest)) func() {
		return func() {
			r := pause
			change(&r)
			c := h.dial()
			defer c.Close()
			require.NotZero(t, request(t, c, r).Code)
		}
	}
	for name, try := range map[string]func(){
		"during a capture": func() {
			h.do("capture")
			refused(func(r *control.SteerRequest) { r.Timeout = new(0.05) })()
			h.do("captured")
		},
		"not idle": refused(func(r *control.SteerRequest) { r.Idle = new(3600.0) }),
		"a hold that is refused": func() {
			h.do("capture")
			refused(func(r *control.SteerRequest) { r.Hold, r.Timeout = true, new(0.05) })()
			h.do("captured")
		},
		"a hold whose pause never comes": func() {
			c := h.dial()
			hold := pause
			hold.Hold = true
			well(t, c, hold)
			well(t, c, control.SteerRequest{Op: control.Undo})
		},
		"everything, with a multicast object": func() {
			h.do("multicast")
			refused(func(r *control.SteerRequest) { r.Everything = true })()
		},
	} {
		require.Equal(t, "ok", h.do("dead"))
		try()
		c := h.dial()
		well(t, c, pause)
		well(t, c, resumeOf(""))
		c.Close()
		require.Equal(t, "ok", h.do("check"), name)
	}
	h.ends()
}

// Threads that go on giving the device work are held up where they can be, and find everything as it was.
func TestPausedWhileItWorks(t *testing.T) {
	h := onlyControlled(t, reaching(t))
	h.do("work")
	c := h.dial()
	require.True(t, h.state().Gated)
	unforced := gated(control.Pause, "")
	for i := range often(50, 10) {
		if i == 5 { // the client that paused it leaves
			other := h.dial()
			well(t, other, unforced)
			other.Close()
			h.eventually(nonePaused)
		}
		before := h.do("cycles")
		until(t, func() bool { return h.do("cycles") != before })
		require.GreaterOrEqual(t, well(t, c, unforced).Bytes, uint64(32*mib))
		before = h.do("cycles")
		time.Sleep(2 * time.Millisecond) // in which nothing happens
		require.Equal(t, before, h.do("cycles"))
		well(t, c, resumeOf(""))
	}
	h.do("calm")
	require.Equal(t, "ok", h.do("check"))
	h.ends()
}

// The library sees whether there is work. Paused with Yield, it resumes itself at the next call, and else not.
func TestPausedWhileItIsIdle(t *testing.T) {
	h := onlyControlled(t, reaching(t))
	c := h.dial()
	yield := false
	pause := func(idle float64) control.Reply {
		r := gated(control.Pause, "")
		r.Idle, r.Yield = &idle, yield
		return request(t, c, r)
	}
	reply := pause(3600)
	require.Equal(t, 600, reply.Code)
	require.Regexp(t, "a device was given work .* ago, less than 1h0m0s; nothing has changed", reply.Error)
	given := func() time.Time { // the time of the last work, or a little before
		asked := time.Now()
		return asked.Add(-time.Duration(*h.state().IdleSeconds * float64(time.Second)))
	}
	h.do("work")
	for range 3 { // it makes the same call again and again, too
		before := given()
		until(t, func() bool { return given().After(before.Add(100 * time.Millisecond)) })
		require.Equal(t, 600, pause(3600).Code)
	}
	h.do("calm")
	h.state() // which sees the last of the work
	before := *h.state().IdleSeconds
	until(t, func() bool { return pause(0.3).OK })
	require.True(t, h.state().HeldUp)
	require.Greater(t, *h.state().IdleSeconds, max(before, 0.3))
	require.Equal(t, bothPaused, h.paused())

	checked := make(chan string)
	go func() { checked <- h.do("check") }()
	select {
	case said := <-checked:
		require.Fail(t, "it has not waited", said)
	case <-time.After(300 * time.Millisecond):
	}
	well(t, c, resumeOf(""))
	require.Equal(t, "ok", <-checked)
	yield = true
	require.True(t, pause(0).OK, "idle or not")
	require.Equal(t, bothPaused, h.paused())
	c.Close()
	require.Equal(t, bothPaused, h.paused())
	require.Equal(t, "ok", h.do("check"))
	require.False(t, h.state().HeldUp)
	h.ends()

	h = controlled(t)
	require.Nil(t, h.state().IdleSeconds)
	idle := 1.0
	unknown := control.SteerRequest{Op: control.Pause, Idle: &idle, Force: true}
	require.Equal(t, 801, request(t, h.dial(), unknown).Code, "without a gate it is not known")
	yielding := control.SteerRequest{Op: control.Pause, Yield: true, Force: true}
	require.Equal(t, 801, request(t, h.dial(), yielding).Code, "without a gate no call would wait for it")
}

// What a client has paused stays paused as long as the client is there, unless it says otherwise.
func TestClientsVanish(t *testing.T) {
	h := onlyControlled(t)
	pauser := func(r control.SteerRequest) *client.Conn {
		c := h.dial()
		well(t, c, r)
		return c
	}
	pauser(pauseOf("")).Close()
	h.eventually(nonePaused)
	require.Equal(t, "ok", h.do("check"))

	c := pauser(pauseOf(""))
	well(t, c, control.SteerRequest{Op: control.Keep})
	c.Close()
	c = pauser(pauseOf("")) // which finds nothing to pause, and undoes nothing
	c.Close()
	time.Sleep(50 * time.Millisecond) // in which nothing is resumed
	require.Equal(t, bothPaused, h.paused())
	pauser(resumeOf("")).Close()
	require.Equal(t, nonePaused, h.paused())

	c = pauser(pauseOf("cache"))
	well(t, c, control.SteerRequest{Op: control.Keep})
	c.Close()
	time.Sleep(50 * time.Millisecond) // in which nothing is resumed
	require.Equal(t, cachePaused, h.paused())
	// What was paused before stays paused.
	pauser(pauseOf("")).Close()
	h.eventually(cachePaused)
	pauser(resumeOf("")).Close()
	h.do("pause cache")
	pauser(pauseOf("")).Close()
	h.eventually(cachePaused)
	h.do("resume")

	// Two clients have paused the same: it stays paused while either is there.
	one, other := pauser(pauseOf("cache")), pauser(pauseOf("cache"))
	one.Close()
	time.Sleep(50 * time.Millisecond) // in which nothing is resumed
	require.Equal(t, cachePaused, h.paused())
	other.Close()
	h.eventually(nonePaused)

	// They leave in the middle, again and again; what had begun is undone, the rest withdrawn.
	for i := range 30 {
		raw := h.connect()
		send(t, raw, pauseOf(""))
		time.Sleep(time.Duration(i) * time.Millisecond)
		require.NoError(t, raw.Close())
	}
	pauser(resumeOf("")).Close() // at its turn all of them have begun or been withdrawn
	h.eventually(nonePaused)
	require.Equal(t, "ok", h.do("check"))

	// The reply to it cannot be written, and no other client makes the thread look around.
	free := h.do("free")
	raw := h.connect()
	require.NoError(t, raw.CloseRead())
	send(t, raw, pauseOf(""))
	require.Eventually(t, func() bool { // it was paused
		_, err := raw.Write([]byte("\n"))
		return err != nil
	}, time.Minute, 5*time.Millisecond)
	until(t, func() bool { return h.do("free") == free })

	// It cannot be resumed at once, and is resumed as soon as there is memory.
	c = pauser(pauseOf(""))
	h.do("hog")
	c.Close()
	until(t, func() bool { return strings.Contains(h.stderr.String(), "cannot be resumed yet: ") })
	require.Equal(t, bothPaused, h.paused())
	tries := map[string]bool{}
	require.Eventually(t, func() bool { // tried again, and not ever more rarely
		tries[h.do("calls calls:cuMemGetInfo_v2")] = true
		return len(tries) > 8
	}, time.Minute, 50*time.Millisecond)
	tried := h.do("calls calls:cuMemGetInfo_v2")
	h.dial() // and at once when a client comes, which may have made room
	until(t, func() bool { return h.do("calls calls:cuMemGetInfo_v2") != tried })
	h.do("unhog")
	h.eventually(nonePaused)
	require.Equal(t, 2, strings.Count(h.stderr.String(), "\n"), h.stderr) // and who has the memory
	require.Equal(t, "ok", h.do("check"))
}

// connect returns a raw connection.
func (h *steered) connect() *net.UnixConn {
	h.t.Helper()
	path := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms", control.Name(h.pid()))
	connection, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = connection.Close() })
	require.NoError(h.t, connection.SetDeadline(time.Now().Add(time.Minute)))
	return connection
}

func send(t *testing.T, raw *net.UnixConn, r control.SteerRequest) {
	t.Helper()
	r.Version = control.Version
	_, err := raw.Write(control.Line(r))
	require.NoError(t, err)
}

// A pause for a snapshot saves contents in files that are host memory, which only the socket's thread has open.
func TestContentsInFilesInMemory(t *testing.T) {
	h := onlyControlled(t)
	c := h.dial()
	files := func() (open int) {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/fd/*", h.pid()))
		require.NoError(t, err)
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "/memfd:tms contents") {
				open++
			}
		}
		return open
	}
	to := func(r control.SteerRequest) control.SteerRequest {
		r.To = control.ToMemory
		return r
	}
	for _, pausedBefore := range []bool{false, true} {
		if pausedBefore {
			well(t, c, pauseOf(""))
			require.Zero(t, files())
			require.Positive(t, well(t, c, to(control.SteerRequest{Op: control.Move})).Bytes)
		} else {
			well(t, c, to(pauseOf("")))
		}
		require.Equal(t, 1, files())
		require.Positive(t, h.state().Stats.Devices[0].Tags[1].HostBytes)
		well(t, c, resumeOf(""))
		require.Equal(t, "ok", h.do("check"))
		until(t, func() bool { return files() == 0 }) // they are closed in the background
	}
	h.ends()
}

// replies reads everything until the connection ends.
func replies(t *testing.T, from io.Reader) (found []control.Reply) {
	t.Helper()
	text, err := io.ReadAll(from)
	require.True(t, err == nil || errors.Is(err, syscall.ECONNRESET), "%v", err)
	for line := range bytes.Lines(text) {
		var reply control.Reply
		require.NoError(t, json.Unmarshal(line, &reply), "%s", line)
		require.Equal(t, control.Version, reply.Version)
		found = append(found, reply)
	}
	return found
}

func TestRequestsThatAreRefused(t *testing.T) {
	h := onlyControlled(t)
	long := strings.Repeat("x", control.MaxLine+1)
	silent, start := h.connect(), time.Now()
	_, err := io.WriteString(silent, `{"version":1,`)
	require.NoError(t, err)
	for _, c := range []struct {
		sent    string
		refused []string // words of the replies before the last
		closed  bool     // what follows it gets no reply
	}{
		{"{}\n", []string{"version 0"}, false},
		{`{"version":5,"op":"status","more":1}` + "\n", []string{"version 5"}, false},
		{`{"version":1,"op":"explode"}` + "\n", []string{`no operation "explode"`}, false},
		{`{"version":1,"op":"keep","everywhere":true}` + "\n", []string{""}, false},
		{`{"version":1,"op":"status","tag":"a"}` + "\n", []string{"status takes no tag"}, false},
		{`{"version":1,"op":"pause","everything":true,"tag":"a"}` + "\n", []string{"takes everything"}, false},
		{`{"version":1,"op":"pause","toward":{"a":{"device":"b"}}}` + "\n", []string{"takes toward"}, false},
		{`{"version":1,"op":"move","to":"tape"}` + "\n", []string{"is no place for contents"}, false},
		{`{"version":1,"op":"resume","to":"disk"}` + "\n", []string{"resume takes no to"}, false},
		{`{"version":1,"op":"resume","wait":-1}` + "\n", []string{"wait is -1"}, false},
		{`{"version":1,"op":"pause","idle":-1}` + "\n", []string{"idle is -1"}, false},
		{`{"version":1,"op":"resume","idle":0}` + "\n", []string{"resume takes no idle"}, false},
		{`{"version":1,"op":"pause","tag":"a\u0000b"}` + "\n", []string{"is no tag"}, false},
		{"\r\n\n{ \n\xff\xfe\n[[[[\nnull 1\n",
			[]string{"not understood", "not even UTF-8", "not understood", "more behind it"}, false},
		{`{"version":1,"op":"keep"}` + "\n", []string{""}, false},
		{long + "\n", []string{"more than 65536 bytes"}, true},
		{long + long + long + long, []string{"more than 65536 bytes"}, true},
	} {
		raw := h.connect()
		go func() {
			_, _ = io.WriteString(raw, c.sent)
			_, _ = io.WriteString(raw, `{"version":1,"op":"status","id":9}`+"\n")
			_ = raw.CloseWrite()
		}()
		got := replies(t, raw)
		if !c.closed {
			require.NotEmpty(t, got, "%.50q", c.sent)
			last := got[len(got)-1]
			require.True(t, last.OK && last.ID == 9, "%.50q: %v", c.sent, got)
			got = got[:len(got)-1]
		}
		require.Len(t, got, len(c.refused), "%.50q", c.sent)
		for i, words := range c.refused {
			require.Contains(t, got[i].Error, words)
			require.Equal(t, words == "", got[i].OK)
		}
	}
	// A line without an end: the connection ends, or time runs out.
	raw := h.connect()
	_, err = io.WriteString(raw, `{"version":1,`)
	require.NoError(t, err)
	require.NoError(t, raw.CloseWrite())
	for connection, words := range map[*net.UnixConn]string{raw: "no end", silent: "not ended for 5s"} {
		got := replies(t, connection)
		require.Len(t, got, 1)
		require.Contains(t, got[0].Error, words)
	}
	require.Greater(t, time.Since(start), 4*time.Second)
	h.ends()
}

func TestManyClients(t *testing.T) {
	h := onlyControlled(t)
	var first []*client.Conn
	for range control.MaxClients {
		c := h.dial()
		_, err := c.Status(context.Background(), time.Minute)
		require.NoError(t, err)
		first = append(first, c)
	}
	status := control.SteerRequest{Op: control.Status}
	require.Contains(t, request(t, h.dial(), status).Error, "16 clients are connected already")
	// All at once: each is answered, and those that change something are made one after another.
	var all sync.WaitGroup
	for i, c := range first {
		all.Go(func() {
			for n := range often(20, 8) {
				r := []control.SteerRequest{pauseOf("cache"), resumeOf("cache"), pauseOf(""), resumeOf(""), status}[(i+n)%5]
				reply, err := c.Do(context.Background(), r)
				if err != nil || !reply.OK {
					t.Errorf("%v: %v %v", r.Op, reply.Error, err)
				}
			}
		})
	}
	all.Wait()
	for _, c := range first {
		c.Close()
	}
	h.eventually(nonePaused)
	require.Equal(t, "ok", h.do("check"))
	h.ends()
}

// A client that goes withdraws its request in the queue, and ends its wait for memory. While it waits, the process
// answers a status.
func TestWithdrawn(t *testing.T) {
	t.Run("of the request", func(t *testing.T) { withdrawn(t, 600) })
	t.Run("of the process", func(t *testing.T) { withdrawn(t, 0, "TMS_RESUME_WAIT=600") })
}

func withdrawn(t *testing.T, wait float64, environment ...string) {
	h := onlyControlled(t, environment...)
	holder := h.dial()
	well(t, holder, pauseOf(""))
	h.do("hog")
	waiting := h.connect() // the other waits for it
	send(t, waiting, control.SteerRequest{ID: 1, Op: control.Resume, Wait: wait})
	h.does(control.Resume)

	queued := h.connect()
	answers := bufio.NewReader(queued)
	next := func() (reply control.Reply) {
		line, err := answers.ReadBytes('\n')
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(line, &reply))
		return reply
	}
	send(t, queued, control.SteerRequest{Op: control.Pause, ID: 1, Force: true})
	send(t, queued, control.SteerRequest{Op: control.Resume, ID: 2})
	reply := next()
	require.EqualValues(t, 2, reply.ID)
	require.Contains(t, reply.Error, "the pause before is not done yet")
	send(t, queued, control.SteerRequest{Op: control.Status, ID: 3})
	reply = next()
	require.True(t, reply.OK && reply.ID == 3)
	queued.Close()
	waiting.Close()
	h.does("")
	require.Equal(t, bothPaused, h.paused())
	h.do("unhog")
	holder.Close()
	h.eventually(nonePaused)
	h.ends("the resume of all tags waits for memory: ")
}

// Garbage, floods and sudden ends of connections, while the program allocates and is paused and resumed.
func TestControlIsRobust(t *testing.T) {
	directory := sockets(t)
	h := controlled(t)
	socket := filepath.Join(directory, control.Name(h.pid()))
	descriptors := h.do("descriptors")
	h.do("churn")
	until := time.Now().Add(time.Duration(often(60_000, 500)) * time.Millisecond)
	var all sync.WaitGroup
	for seed := range 6 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			for time.Now().Before(until) {
				raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
				if errors.Is(err, syscall.EAGAIN) { // too many at once
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				_ = raw.SetDeadline(time.Now().Add(100 * time.Millisecond))
				switch r.IntN(5) {
				case 0: // bytes
					garbage := make([]byte, r.IntN(200_000))
					for i := range garbage {
						garbage[i] = byte(r.Uint32())
					}
					_, _ = raw.Write(garbage)
				case 1: // many requests, whose replies are not read
					_, _ = raw.Write(bytes.Repeat(control.Line(control.SteerRequest{Version: 1, Op: control.Status}), 2000))
				case 2: // half a line
					line := control.Line(control.SteerRequest{Version: 1, Op: control.Pause, Force: true})
					_, _ = raw.Write(line[:r.IntN(len(line))])
				case 3: // lines with one byte changed
					line := control.Line(control.SteerRequest{Version: 1, Op: control.Resume, Wait: 1e-9})
					for range 50 {
						other := slices.Clone(line)
						other[r.IntN(len(other))] = byte(r.Uint32())
						_, _ = raw.Write(other)
					}
				case 4:
					_ = raw.CloseRead()
				}
				_ = raw.Close()
			}
		})
	}
	paused := 0
	for time.Now().Before(until) {
		c, err := client.Dial(h.pid())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		reply, err := c.Do(ctx, pauseOf("weights")) // refused now and then: there are many clients
		if err == nil && reply.OK {
			reply, err = c.Do(ctx, resumeOf("weights"))
			require.NoError(t, err)
			require.True(t, reply.OK, reply.Error)
			paused++
		}
		cancel()
		c.Close()
	}
	all.Wait()
	require.Positive(t, paused)
	h.eventually(nonePaused)
	cycles := h.number("calm")
	require.Positive(t, cycles)
	require.Equal(t, "ok", h.do("check"))
	require.Equal(t, descriptors, h.do("descriptors"))
	h.ends()
}

// The process's descriptor table has nothing of the socket, and what the host does to the table does not reach it.
func TestControlAndDescriptors(t *testing.T) {
	sockets(t)
	program := compileWithDriver(t, "steered", majors[1])
	file := filepath.Join(t.TempDir(), "file")
	h := steer(t, []string{program})
	h.do("allocate")
	h.do("lock " + file)
	before := h.do("descriptors")
	threads := h.do("threads")
	require.Equal(t, "0 ", h.do("serve"))
	require.Equal(t, "0 ", h.do("serve"))
	require.Equal(t, before, h.do("descriptors"))
	h.do("locked " + file)
	after := h.number("threads")
	require.Equal(t, threads, fmt.Sprint(after-5))
	c := h.dial()
	well(t, c, pauseOf(""))
	require.Equal(t, before, h.do("descriptors"))
	h.do("close")
	well(t, c, resumeOf(""))
	h.do("limit 5") // fewer than there are clients
	require.Equal(t, nonePaused, h.paused())
	require.Equal(t, "ok", h.do("check"))
	h.do("limit 1024")
	require.Equal(t, nonePaused, h.paused())
	h.ends()
}

func TestControlWithoutCloseRange(t *testing.T) {
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends
		refused <- unix.Unshare(unix.CLONE_FILES)
	}()
	if err := <-refused; err != nil {
		t.Skipf("a thread can have no descriptors of its own here, as Docker's filter of system calls refuses unshare: %v", err)
	}
	sockets(t)
	program, sandbox := compileWithDriver(t, "steered", majors[1]), compile(t, "sandbox", "")
	h := steer(t, []string{sandbox, "old", program})
	h.do("allocate")
	before := h.do("descriptors")
	require.Equal(t, "0 ", h.do("serve"))
	require.Equal(t, before, h.do("descriptors"))
	require.Equal(t, nonePaused, h.paused())
	count, err := strconv.Atoi(before)
	require.NoError(t, err)
	own := 0
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", h.pid()))
	require.NoError(t, err)
	for _, task := range tasks {
		var open []string
		descriptors, err := filepath.Glob(task + "/fd/*")
		require.NoError(t, err)
		for _, descriptor := range descriptors {
			if link, err := os.Readlink(descriptor); err == nil {
				open = append(open, link)
			}
		}
		if len(open) < count-3 { // ".", ".." and the counter's own
			own++
			for _, link := range open {
				require.Regexp(t, "^socket:", link)
			}
		}
	}
	require.Equal(t, 1, own)
	h.ends()

	h = steer(t, []string{sandbox, "forbidden", program}, "TMS_CONTROL=1")
	h.do("allocate")
	require.Regexp(t, "^304 a thread cannot have descriptors of its own", h.do("serve"))
	require.Equal(t, "ok", h.do("check"))
	require.NoError(t, h.stdin.Close())
	require.NoError(t, h.command.Wait(), "%s", h.stderr)
	require.Regexp(t, "^tms: the process cannot be steered from outside: "+
		"a thread cannot have descriptors of its own .*\n$", h.stderr.String())
}

func TestControlOfWhoDidNotAsk(t *testing.T) {
	directory := sockets(t)
	program := compileWithDriver(t, "steered", majors[1])
	h := steer(t, []string{program})
	h.do("allocate")
	require.NoDirExists(t, directory)
	_, err := client.Dial(h.pid())
	require.ErrorIs(t, err, client.ErrUnreachable)
	require.ErrorContains(t, err, "does not listen")
	plain := h.do("threads")
	require.NoError(t, h.stdin.Close())
	h = controlled(t)
	with := h.do("threads")
	h.ends()
	require.NotEqual(t, plain, with)

	// A process that asked for the socket, and has not used the library.
	h = steer(t, []string{program}, "TMS_CONTROL=1")
	require.Equal(t, "1", h.do("threads"))
	pids := listed(t)
	require.NotContains(t, pids, h.pid())
	require.NoError(t, h.stdin.Close())
}

func TestControlAndProcesses(t *testing.T) {
	directory := sockets(t)
	h := controlled(t)
	socket := filepath.Join(directory, control.Name(h.pid()))
	// A child has no socket, and takes nothing from the parent's.
	require.Equal(t, "3", h.do("fork"))
	require.FileExists(t, socket)
	require.Equal(t, nonePaused, h.paused())
	// Another program in the same process: the process's number is the same, the socket another.
	_, err := io.WriteString(h.stdin, "exec\n")
	require.NoError(t, err)
	require.Equal(t, "ok", h.do("allocate"))
	h.listens()
	require.Equal(t, nonePaused, h.paused())
	// A process that ends as it should removes its socket; the next client removes those of the others.
	ending := controlled(t)
	require.FileExists(t, filepath.Join(directory, control.Name(ending.pid())))
	ending.ends()
	require.NoFileExists(t, filepath.Join(directory, control.Name(ending.pid())))
	require.NoError(t, h.command.Process.Kill())
	_ = h.command.Wait()
	require.FileExists(t, socket)
	_, err = client.Dial(h.pid())
	require.ErrorIs(t, err, client.ErrUnreachable)
	require.ErrorContains(t, err, "no such process")
	require.NoFileExists(t, socket)
	require.NoError(t, os.WriteFile(filepath.Join(directory, "1.sock.old"), nil, 0o600))
	pids := listed(t)
	require.NotContains(t, pids, 1)
	require.NotContains(t, pids, h.pid())
	require.FileExists(t, filepath.Join(directory, "1.sock.old"))

	// A process that became a daemon before it used the library, and one that did so after.
	program := compileWithDriver(t, "steered", majors[1])
	h = steer(t, []string{program}, "TMS_CONTROL=1")
	daemon := h.number("daemon")
	h.do("close")
	h.do("allocate")
	listens(t, daemon)
	dial(t, daemon).Close()
	require.NoError(t, syscall.Kill(daemon, syscall.SIGKILL))

	h = controlled(t)
	daemon = h.number("daemon")
	require.Equal(t, "3", strings.Fields(h.do("serve"))[0])
	_, err = client.Dial(daemon)
	require.ErrorIs(t, err, client.ErrUnreachable)
	require.NoError(t, syscall.Kill(daemon, syscall.SIGKILL))
}

// Directories that are not the user's alone are not used.
func TestControlDirectory(t *testing.T) {
	directory := sockets(t)
	program := compileWithDriver(t, "steered", majors[1])
	refused := func(words string, environment ...string) {
		t.Helper()
		h := steer(t, []string{program}, environment...)
		answer := h.do("serve")
		require.True(t, strings.HasPrefix(answer, "304 "), answer)
		require.Contains(t, answer, words)
		require.NoError(t, h.stdin.Close())
	}
	temporary := os.Getenv("TMPDIR")
	second := filepath.Join(temporary, fmt.Sprint("tms-", os.Geteuid()))
	elsewhere := t.TempDir()
	require.NoError(t, os.Symlink(elsewhere, directory))
	require.NoError(t, os.Symlink(elsewhere, second))
	refused("is no directory")
	require.NoError(t, os.Remove(directory))
	require.NoError(t, os.Mkdir(directory, 0o755))
	refused("chmod 700 it")
	require.NoError(t, os.Remove(directory))
	require.NoError(t, os.Remove(second))
	if hermetic.HasOtherUsers() {
		require.NoError(t, os.Mkdir(second, 0o700))
		require.NoError(t, os.Chown(second, 54321, -1))
		refused("belongs to user 54321", "XDG_RUNTIME_DIR=")
		require.NoError(t, os.Remove(second))
	}
	// The second directory is used where the first cannot be; a path too long for a socket is no obstacle.
	long := filepath.Join(temporary, strings.Repeat("long", 40))
	require.NoError(t, os.Mkdir(long, 0o700))
	for _, variables := range [][]string{
		{"XDG_RUNTIME_DIR=/nowhere", "TMPDIR=" + temporary}, {"XDG_RUNTIME_DIR=relative", "TMPDIR=" + temporary},
		{"XDG_RUNTIME_DIR=" + long, "TMPDIR=/nowhere"}, {"XDG_RUNTIME_DIR=", "TMPDIR=" + long},
	} {
		for _, variable := range variables {
			name, value, _ := strings.Cut(variable, "=")
			t.Setenv(name, value)
		}
		h := steer(t, []string{program})
		require.Equal(t, "0 ", h.do("serve"), variables)
		h.listens()
		require.Equal(t, nonePaused, h.paused())
		h.ends()
		pids := listed(t)
		require.NotContains(t, pids, h.pid())
	}
	// Another process answers there already.
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(directory))
	t.Setenv("TMPDIR", "/nowhere")
	h := steer(t, []string{program})
	require.NoError(t, os.Mkdir(directory, 0o700))
	other, err := net.Listen("unix", filepath.Join(directory, control.Name(h.pid())))
	require.NoError(t, err)
	require.Contains(t, h.do("serve"), "another process answers there")
	require.NoError(t, other.Close())
	require.Equal(t, "0 ", h.do("serve"))
	h.listens()
	h.ends()
}

// Only processes of the same user are heard, even where the directory lets others in.
func TestControlOfOthers(t *testing.T) {
	if address := os.Getenv("STRANGER"); address != "" {
		connection, err := net.Dial("unix", address)
		require.NoError(t, err)
		_, _ = connection.Write(control.Line(control.SteerRequest{Version: 1, Op: control.Pause, Force: true}))
		text, _ := io.ReadAll(connection)
		fmt.Printf("%s\n", text)
		return
	}
	hermetic.OtherUsers(t)
	directory := sockets(t)
	h := controlled(t)
	socket := filepath.Join(directory, control.Name(h.pid()))
	program := filepath.Join(filepath.Dir(directory), "stranger")
	content := read(t, os.Args[0])
	require.NoError(t, os.WriteFile(program, []byte(content), 0o755))
	for _, path := range []string{directory, filepath.Dir(directory), socket} {
		require.NoError(t, os.Chmod(path, 0o777))
	}
	command := exec.Command(program, "-test.run=^TestControlOfOthers$")
	command.Env = []string{"STRANGER=" + socket}
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "the process is another user's")
	require.NoError(t, os.Chmod(directory, 0o700))
	require.Equal(t, nonePaused, h.paused())
	h.ends()
}
