package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/docs/examples/snapshotagent"
	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/snapshot"
	"tms/internal/snapshot/tree"
)

// controller is a client of a tms serve that a test has started.
type controller struct {
	http.Client
	t      *testing.T
	server *steered
	audit  *said
	socket string
}

// controlling starts tms serve, at the user's own socket unless the arguments say otherwise.
func controlling(t *testing.T, arguments ...string) *controller {
	t.Helper()
	c := &controller{t: t, audit: &said{}}
	command := exec.Command(tms, append([]string{"serve"}, arguments...)...)
	command.Stderr = c.audit
	c.server = startProgram(t, command)
	c.socket, _ = strings.CutPrefix(c.server.line(), "unix:")
	c.Transport = &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.socket)
		}}
	return c
}

// answer is one of the server's, of any kind.
type answer struct {
	Status    int
	Snapshots []snapshot.Listed
	Restored  []tree.Restored
	Error     string
	Outcomes  []group.Outcome
	Plans     []group.Plan
	Processes []fleet.Process
	Version   string
	PausedBy  []control.LastingPause `json:"paused_by"`
}

// ask sends a request, and returns the answer. Errors: there is none.
func (c *controller) ask(ctx context.Context, method, path, body string) (a answer, err error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://tms"+path, strings.NewReader(body))
	require.NoError(c.t, err)
	reply, err := c.Do(request)
	if err != nil {
		return a, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	a.Status = reply.StatusCode
	return a, err
}

func (c *controller) get(path string) answer {
	c.t.Helper()
	a, err := c.ask(c.t.Context(), http.MethodGet, path, "")
	require.NoError(c.t, err)
	return a
}

func (c *controller) post(path, body string) answer {
	c.t.Helper()
	a, err := c.ask(c.t.Context(), http.MethodPost, path, body)
	require.NoError(c.t, err)
	return a
}

// done posts what must succeed.
func (c *controller) done(path, body string) []group.Outcome {
	c.t.Helper()
	a := c.post(path, body)
	require.Equal(c.t, http.StatusOK, a.Status, "%s %s: %+v", path, body, a)
	return a.Outcomes
}

// records waits for lines of the audit about what has ended, and returns the last.
func (c *controller) records(lines int) (line string) {
	c.t.Helper()
	var ended []string
	require.Eventually(c.t, func() bool {
		ended = slices.DeleteFunc(strings.SplitAfter(c.audit.String(), "\n"), func(line string) bool {
			return !strings.HasSuffix(line, "\n") || strings.Contains(line, `"msg":"begins"`)
		})
		return len(ended) >= lines
	}, time.Minute, 5*time.Millisecond)
	return ended[len(ended)-1]
}

func pidsOf(s ...*steered) string {
	var numbers []string
	for _, one := range s {
		numbers = append(numbers, one.number())
	}
	return `"pids":[` + strings.Join(numbers, ",") + `]`
}

// A controller does over HTTP what the commands do.
func TestServe(t *testing.T) {
	large, small, _ := pair(t)
	c := controlling(t)
	require.Equal(t, filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms", "serve.sock"), c.socket)
	require.Equal(t, version, c.get("/v1/version").Version)

	require.Eventually(t, func() bool { // each has a second to answer
		listed := c.get("/v1/processes").Processes
		return len(listed) == 2 && listed[0].Error+listed[1].Error == "" && listed[0].PID == small.Process.Pid
	}, time.Minute, 5*time.Millisecond)

	// A dry run changes nothing, and what cannot be done changes nothing.
	plans := c.post("/v1/swap", `{"out":`+small.number()+`,"in":`+large.number()+`,"dry_run":true}`).Plans
	require.True(t, plans[0].Fits && plans[1].Fits)
	refused := c.post("/v1/resume", "{"+pidsOf(large)+"}")
	require.Equal(t, http.StatusConflict, refused.Status)
	require.Equal(t, 2, refused.Outcomes[0].Code)
	require.EqualValues(t, smallBytes, held(t, small))
	require.Zero(t, held(t, large))

	swapped := c.done("/v1/swap", `{"out":`+small.number()+`,"in":`+large.number()+`}`)
	require.Equal(t, []int{small.Process.Pid, large.Process.Pid}, []int{swapped[0].PID, swapped[1].PID})
	require.EqualValues(t, largeBytes, swapped[1].Bytes)
	require.Equal(t, "ok", large.do("check"))
	line := c.records(3)
	for _, part := range []string{`"who":"uid `, `, pid `, `"path":"/v1/swap"`, `"result":"done"`,
		`"pid":` + small.number(), `"request":{"out":` + small.number()} {
		require.Contains(t, line, part)
	}

	paused := c.done("/v1/pause", "{"+pidsOf(large)+`,"tag":"weights"}`)
	require.EqualValues(t, largeBytes-16<<20, paused[0].Bytes)
	require.EqualValues(t, 16<<20, held(t, large))
	require.EqualValues(t, largeBytes-16<<20, c.done("/v1/resume", "{"+pidsOf(large)+`,"wait":60}`)[0].Bytes)
	require.Equal(t, "ok", large.do("check"))

	// A lend ends by itself, and says whose it is; the same ends earlier by a resume.
	lent := c.done("/v1/lend", "{"+pidsOf(large)+`,"for":3600,"to":"bert"}`)
	require.Greater(t, lent[0].Until, float64(time.Now().Unix()))
	name := strconv.Itoa(os.Getuid()) // of a user that the machine does not know
	if own, err := user.Current(); err == nil {
		name = own.Username
	}
	by := c.get("/v1/processes/" + large.number()).PausedBy
	require.Len(t, by, 1)
	require.Equal(t, []string{name, "bert"}, []string{by[0].User, by[0].To})
	c.done("/v1/resume", "{"+pidsOf(large)+"}")
	require.Empty(t, c.get("/v1/processes/"+large.number()).PausedBy)
	c.done("/v1/lend", "{"+pidsOf(large)+`,"for":1}`)
	require.Eventually(t, func() bool { return held(t, large) == largeBytes }, time.Minute, 5*time.Millisecond)

	// Some of several: each has its outcome.
	some := c.post("/v1/pause", `{"pids":[999999999,`+large.number()+`]}`)
	require.Equal(t, http.StatusNotFound, some.Status)
	require.Equal(t, "there is no such process", some.Outcomes[0].Error)
	require.True(t, some.Outcomes[1].OK)
	require.Contains(t, c.records(9), `"result":"failed"`)

	// SIGTERM ends it, and what it has paused stays paused.
	require.NoError(t, c.server.Process.Signal(os.Interrupt))
	require.NoError(t, c.server.Wait())
	require.NoFileExists(t, c.socket)
	require.Zero(t, held(t, large))
}

// A program that ends with its snapshot starts again, by requests alone, with the streams of the server.
func TestServeSnapshots(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // its number is free at the restore
		return
	}
	s, directory := startWarm(t)
	c := controlling(t, "--snapshots", directory)
	require.Equal(t, []snapshot.Listed{}, c.get("/v1/snapshots").Snapshots)
	refused := c.post("/v1/snapshot", `{"pid":`+s.number()+`}`)
	require.Equal(t, http.StatusConflict, refused.Status)
	require.Contains(t, refused.Error, "tms run")
	s.do("check")
	reply, err := c.Post("http://tms/v1/snapshot", "", strings.NewReader(`{"pid":`+s.number()+`,"force":true,"stop":true}`))
	require.NoError(t, err)
	defer reply.Body.Close()
	var taken tree.Taken
	require.NoError(t, json.NewDecoder(reply.Body).Decode(&taken))
	require.Equal(t, []int{s.Process.Pid}, taken.Processes)
	require.Contains(t, c.records(2), `"path":"/v1/snapshot"`)
	require.Error(t, s.Wait()) // killed
	listed := c.get("/v1/snapshots").Snapshots
	require.Len(t, listed, 1)
	require.Equal(t, taken.Name, listed[0].Name)

	require.Contains(t, c.post("/v1/restore", `{"name":"none"}`).Error, "has no snapshot none")
	back := c.post("/v1/restore", `{"name":"`+taken.Name+`"}`)
	require.Equal(t, http.StatusOK, back.Status, back.Error)
	pid := back.Restored[0].Processes[0]
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL); awaitEnd(t, pid) })
	require.Equal(t, s.Process.Pid, pid)
	again := &steered{t: t, Cmd: &exec.Cmd{Process: &os.Process{Pid: pid}}, say: c.server.say, answers: c.server.answers}
	again.do("check")
	c.done("/v1/pause", `{"pids":[`+s.number()+`],"force":true}`)
	c.done("/v1/resume", `{"pids":[`+s.number()+`]}`)
	again.do("check")
}

// A request that cannot be understood, or contradicts itself, is refused before it does anything.
func TestServeRefuses(t *testing.T) {
	ownSockets(t)
	c := controlling(t)
	for _, line := range []struct {
		status            int
		path, body, words string
	}{
		{400, "/v1/pause", ``, "is no JSON object"},
		{400, "/v1/pause", `{"pids":[1]} {}`, "more behind it"},
		{400, "/v1/pause", `{"pids":[1],"tagg":"a"}`, `unknown field "tagg"`},
		{400, "/v1/pause", `{}`, "give the processes by pids, job or all"},
		{400, "/v1/pause", `{"pids":[1],"all":true}`, "give the processes by pids, job or all"},
		{400, "/v1/pause", `{"pids":[-1]}`, "-1 is no number of a process"},
		{400, "/v1/pause", `{"pids":[1],"tag":""}`, "the tag is empty"},
		{400, "/v1/pause", `{"pids":[1],"timeout":-1}`, "timeout is -1"},
		{400, "/v1/pause", `{"pids":[1],"to":"tape"}`, "give disk or host"},
		{400, "/v1/pause", `{"pids":[1],"to":"disk","discard":true}`, "leave to out"},
		{400, "/v1/pause", `{"pids":[1],"everything":true,"tag":"a"}`, "leave tag out"},
		{400, "/v1/pause", `{"pids":[1],"everything":true,"dry_run":true}`, "dry_run foretells a plain pause alone"},
		{400, "/v1/pause", `{"job":"a","to":"disk"}`, "a job cannot move contents"},
		{400, "/v1/lend", `{"pids":[1]}`, "for is 0"},
		{400, "/v1/lend", `{"pids":[1],"for":1e30}`, "for is 1e+30"},
		{400, "/v1/lend", `{"pids":[1],"for":9,"to":"\u009b"}`, "to is a name"},
		{400, "/v1/resume", `{"pids":[1],"wait":1e30}`, "wait is 1e+30"},
		{400, "/v1/swap", `{"out":1,"in":1}`, "two different processes"},
		{400, "/v1/snapshot", `{"pid":0}`, "0 is no number of a process"},
		{400, "/v1/snapshot", `{"pid":1,"directory":"/tmp"}`, `unknown field "directory"`},
		{404, "/v1/snapshot", `{"pid":1}`, "start it with --snapshots DIR"},
		{400, "/v1/restore", `{"copies":-1}`, "copies is -1"},
		{400, "/v1/restore", `{"wait":-1}`, "wait is -1"},
		{400, "/v1/restore", `{"hook":"/bin/sh"}`, `unknown field "hook"`},
		{404, "/v1/restore", `{}`, "start it with --snapshots DIR"},
		{400, "/v1/swap", `{"out":1}`, "0 is no number of a process"},
		{400, "/v1/move", `{"pids":[1]}`, "give either to, or map"},
		{400, "/v1/move", `{"pids":[1],"map":{"0":""}}`, "map has each GPU"},
		{400, "/v1/move", `{"pids":[1],"map":{"0":"1"},"from":"1"}`, "leave it out of a map"},
		{400, "/v1/move", `{"all":true,"to":"1"}`, "which GPU is to be emptied"},
		{404, "/v1/pause", `{"all":true}`, "no process of this user listens"},
		{404, "/v1/pause", `{"job":"a"}`, "no process of job a listens"},
		{404, "/v1/photograph", `{}`, "there is no POST /v1/photograph"},
		{413, "/v1/pause", `{"tag":"` + strings.Repeat("x", 64<<10) + `"}`, "at most 65536 bytes"},
	} {
		a := c.post(line.path, line.body)
		require.Equal(t, line.status, a.Status, line.body)
		require.Contains(t, a.Error, line.words, line.body)
	}
	require.Equal(t, 404, c.get("/v1/processes/999999999").Status)
	require.Equal(t, 400, c.get("/v1/processes/x").Status)
	require.Equal(t, 404, c.get("/v1/pause").Status)
	require.Contains(t, c.records(20), `"result":"refused"`)

	// A second server finds the first, and a third replaces what a killed one has left.
	fails(t, exitUsage, "a server answers there: end it, or choose another path", "serve")
	require.NoError(t, c.server.Process.Kill())
	_ = c.server.Wait()
	require.FileExists(t, c.socket)
	require.Equal(t, version, controlling(t).get("/v1/version").Version)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	fails(t, exitUsage, "there is a file that is no socket", "serve", "--listen", "unix:"+file)
	fails(t, exitUsage, "no such file or directory: make the directory, or choose another path", "serve", "--listen", "unix:"+file+".none/socket")
}

// A caller that goes before the answer, Ctrl-C on the server, and its end: a resume that waits for memory is withdrawn.
func TestServeWithdraws(t *testing.T) {
	ownSockets(t)
	s := startSteered(t, steeredProgram(t), reaching(t))
	doing := func(operation string) func() bool { return func() bool { return s.doing() == operation } }
	s.do("pause", "hog")
	for _, end := range []func(*controller, context.CancelFunc){
		func(_ *controller, goes context.CancelFunc) { goes() },
		func(c *controller, _ context.CancelFunc) { _ = c.server.Process.Signal(os.Interrupt) },
		func(c *controller, _ context.CancelFunc) { _ = c.server.Process.Kill() },
	} {
		c := controlling(t)
		ctx, goes := context.WithCancel(t.Context())
		defer goes()
		type ended struct {
			answer
			error
		}
		ends := make(chan ended)
		go func() {
			a, err := c.ask(ctx, http.MethodPost, "/v1/resume", "{"+pidsOf(s)+`,"wait":600}`)
			ends <- ended{a, err}
		}()
		require.Eventually(t, doing(control.Resume), time.Minute, 5*time.Millisecond)
		end(c, goes)
		with := <-ends
		require.Eventually(t, doing(""), time.Minute, 5*time.Millisecond)
		require.Zero(t, held(t, s))
		switch {
		case ctx.Err() != nil:
			require.ErrorIs(t, with.error, context.Canceled)
			require.Contains(t, c.records(1), "interrupted: what had not begun is withdrawn")
			require.NoError(t, c.server.Process.Kill())
			_ = c.server.Wait()
		case with.error == nil: // the server was interrupted, and has answered
			require.Equal(t, http.StatusConflict, with.Status)
			require.Contains(t, with.Outcomes[0].Error, "interrupted")
			require.NoError(t, c.server.Wait())
		default: // the server was killed, and the audit has what was in progress
			require.Error(t, c.server.Wait())
			require.Contains(t, c.audit.String(), `"msg":"begins","change":1,`)
			require.Contains(t, c.audit.String(), `"path":"/v1/resume","request":{`+pidsOf(s))
			require.NotContains(t, c.audit.String(), `"msg":"change"`)
		}
	}
	s.do("unhog", "resume")
	require.Equal(t, "ok", s.do("check"))

	// A pause that has begun is completed, and then undone.
	c := controlling(t)
	s.do("busy 2000")
	ctx, goes := context.WithCancel(t.Context())
	go when(doing(control.Pause), goes)
	_, err := c.ask(ctx, http.MethodPost, "/v1/pause", "{"+pidsOf(s)+"}")
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return s.doing() == "" && held(t, s) == smallBytes }, time.Minute,
		5*time.Millisecond)
	require.Equal(t, "ok", s.do("check"))
}

// A caller goes, or the server is killed, at any moment of a swap: one of the two processes has the device then.
func TestServeSwapIsEnded(t *testing.T) {
	in, out, _ := pair(t)
	c := controlling(t)
	moments := hermetic.Often(40, 6)
	for i := range moments {
		after := time.Duration(i) * 80 * time.Millisecond / time.Duration(moments)
		ctx, goes := context.WithTimeout(t.Context(), after)
		if i%2 == 1 {
			time.AfterFunc(after, func() { _ = c.server.Process.Kill() })
			ctx = t.Context()
		}
		_, _ = c.ask(ctx, http.MethodPost, "/v1/swap", `{"out":`+out.number()+`,"in":`+in.number()+`,"wait":5}`)
		goes()
		if i%2 == 1 {
			_ = c.server.Wait()
			c = controlling(t)
		}
		var swapped bool
		require.Eventually(t, func() bool {
			x, y := held(t, in), held(t, out)
			swapped = x > 0
			return (x > 0) != (y > 0)
		}, time.Minute, 5*time.Millisecond)
		if swapped {
			in, out = out, in
		}
		succeeds(t, "pause", in.number()) // or it might still wait for memory
		require.Equal(t, "ok", out.do("check"))
	}
}

// The server is killed as it asks the driver for something: the process comes back, by itself or by a resume.
func TestServeIsKilledBesideTheDriver(t *testing.T) {
	hermetic.Thorough(t)
	w := startWhole(t)
	dies := func(at, path, body string) {
		t.Helper()
		t.Setenv("CUDASIM_FAIL", "cuCheckpointProcess"+at+":1:kill")
		c := controlling(t)
		t.Setenv("CUDASIM_FAIL", "")
		_, err := c.ask(t.Context(), http.MethodPost, path, body)
		require.Error(t, err)
		require.Error(t, c.server.Wait())
		succeeds(t, "resume", w.number())
		w.comesBack()
		w.asBefore()
	}
	for _, at := range []string{"GetState", "Lock", "Checkpoint"} {
		dies(at, "/v1/pause", "{"+pidsOf(w.steered)+`,"everything":true,"force":true}`)
	}
	for _, at := range []string{"GetState", "Restore", "Unlock"} {
		w.pause()
		dies(at, "/v1/resume", "{"+pidsOf(w.steered)+"}")
	}
	c := controlling(t)
	require.Positive(t, c.done("/v1/pause", "{"+pidsOf(w.steered)+`,"everything":true,"force":true}`)[0].DriverSeconds)
	w.requireFree(128)
	require.Positive(t, c.done("/v1/resume", "{"+pidsOf(w.steered)+"}")[0].DriverSeconds)
	w.asBefore()
}

// The example of docs/serve.md has two jobs take turns on a device that holds one of them.
func TestSnapshotAgent(t *testing.T) {
	large, small, _ := pair(t)
	backend := snapshotagent.New(controlling(t).socket)
	require.NoError(t, backend.HealthCheck(t.Context()))
	job := func(s *steered) snapshotagent.Request {
		return snapshotagent.Request{JobID: s.number(), PIDs: []int{s.Process.Pid}}
	}
	short := *backend
	short.Wait = 0
	require.ErrorContains(t, short.Restore(t.Context(), job(large)), "free and 64.00 MiB are needed")
	for range 2 {
		running, waiting := small, large
		if held(t, running) == 0 {
			running, waiting = waiting, running
		}
		for range 2 { // the agent may ask again
			require.NoError(t, backend.Snapshot(t.Context(), job(running)))
		}
		require.NoError(t, backend.Restore(t.Context(), job(waiting)))
		require.Equal(t, "ok", waiting.do("check"))
	}
	require.ErrorContains(t, backend.Snapshot(t.Context(), snapshotagent.Request{JobID: "none", Launch: "none"}),
		"job none: pause: no process of job none listens")
	require.ErrorContains(t, snapshotagent.New("/none").HealthCheck(t.Context()), "no such file or directory")
}

// A process moves to another GPU over HTTP.
func TestServeMoves(t *testing.T) {
	m := startMobile(t)
	c := controlling(t)
	require.NotNil(t, c.done("/v1/move", "{"+pidsOf(m.steered)+`,"to":"1"}`)[0].Move)
	m.on(1)
	require.NotNil(t, c.done("/v1/move", `{"all":true,"map":{"1":"2"}}`)[0].Move)
	m.on(2)
}

// Over TCP a caller needs a token, and tms serve does not listen where other machines reach it unless it is told to.
func TestServeTokens(t *testing.T) {
	ownSockets(t)
	file := filepath.Join(t.TempDir(), "tokens")
	const token, other = "0123456789abcdef", "fedcba9876543210"
	require.NoError(t, os.WriteFile(file, []byte("# two\nscheduler "+token+"\nautoscaler "+other+"\n"), 0o600))
	const local = "127.0.0.1:0"
	fails(t, exitUsage, "over TCP callers need a token", "serve", "--listen", local)
	fails(t, exitUsage, "can be reached from other machines", "serve", "--listen", ":0", "--token-file", file)
	fails(t, exitUsage, "a Unix socket takes no tokens", "serve", "--token-file", file)
	fails(t, exitUsage, "missing port in address", "serve", "--listen", "nowhere", "--token-file", file)

	c := controlling(t, "--listen", local, "--token-file", file)
	ask := func(authorization string) *http.Response {
		request, err := http.NewRequest(http.MethodPost, c.socket+"/v1/pause", strings.NewReader(`{"pids":[999999999]}`))
		require.NoError(t, err)
		request.Header.Set("Authorization", authorization)
		reply, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		return reply
	}
	require.Equal(t, http.StatusNotFound, ask("Bearer "+token).StatusCode)
	require.Contains(t, c.records(1), `"who":"scheduler at 127.0.0.1:`)
	require.Equal(t, http.StatusNotFound, ask("bearer "+other).StatusCode)
	for _, wrong := range []string{"", "Bearer", "Bearer " + token + "x", "Basic " + token, token} {
		refused := ask(wrong)
		require.Equal(t, http.StatusUnauthorized, refused.StatusCode, wrong)
		require.Equal(t, "Bearer", refused.Header.Get("WWW-Authenticate"))
	}
	require.Contains(t, c.records(3), "no known token")
	require.NotContains(t, c.audit.String(), token)

	// Who guesses is slowed down; who has a token is not.
	require.Eventually(t, func() bool { return ask("Bearer guess").StatusCode == http.StatusTooManyRequests },
		time.Minute, 5*time.Millisecond)
	require.Equal(t, http.StatusNotFound, ask("Bearer "+token).StatusCode)

	// From a variable, and elsewhere by words.
	t.Setenv("TMS_SERVE_TOKEN", token)
	c = controlling(t, "--listen", "0.0.0.0:0", "--beyond-loopback")
	c.socket = strings.Replace(c.socket, "0.0.0.0", "127.0.0.1", 1)
	require.Equal(t, http.StatusNotFound, ask("Bearer "+token).StatusCode)
	environment, err := os.ReadFile(filepath.Join("/proc", c.server.number(), "cmdline"))
	require.NoError(t, err)
	require.False(t, bytes.Contains(environment, []byte(token)))
}
