package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// sharing starts programs on one device, each of which holds 32 MiB.
func sharing(t *testing.T, device string) (start func() *steered) {
	t.Helper()
	ownSockets(t)
	program := steeredProgram(t)
	shared := "CUDASIM_SHARED=" + filepath.Base(os.Getenv("TMPDIR"))
	return func() *steered {
		t.Helper()
		return startSteered(t, program, reaching(t), shared, "CUDASIM_MEMORY="+device)
	}
}

// watcher is a running tms idle.
type watcher struct {
	*exec.Cmd
	t      *testing.T
	mutex  sync.Mutex
	text   bytes.Buffer
	errors bytes.Buffer
}

func (w *watcher) Write(text []byte) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.text.Write(text)
}

func (w *watcher) said() string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.text.String()
}

func idle(t *testing.T, arguments ...string) *watcher {
	t.Helper()
	w := &watcher{Cmd: exec.Command(tms, append([]string{"idle"}, arguments...)...), t: t}
	w.Stdout, w.Stderr = w, &w.errors
	require.NoError(t, w.Start())
	t.Cleanup(func() {
		_ = w.Process.Kill()
		_ = w.Wait()
	})
	return w
}

// interrupted interrupts it, and checks that it ends well.
func (w *watcher) interrupted() {
	w.t.Helper()
	require.NoError(w.t, w.Process.Signal(os.Interrupt))
	require.NoError(w.t, w.Wait(), "%s", &w.errors)
	require.Empty(w.t, w.errors.String())
}

// background sends a program a command, whose answer may have to wait.
func (s *steered) background(words string) <-chan string {
	answer := make(chan string, 1)
	go func() {
		defer close(answer) // also when the program has ended
		answer <- s.do(words)
	}()
	return answer
}

func (s *steered) comesTo(bytes uint64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return held(s.t, s) == bytes }, time.Minute, 5*time.Millisecond)
}

// count returns a number that it answers with.
func (s *steered) count(words string) int {
	s.t.Helper()
	number, err := strconv.Atoi(s.do(words))
	require.NoError(s.t, err)
	return number
}

func waits(t *testing.T, answer <-chan string) {
	t.Helper()
	select {
	case words := <-answer:
		require.Fail(t, "it has not waited", words)
	case <-time.After(300 * time.Millisecond):
	}
}

// A process is paused and woken TMS_IDLE_ROUNDS times.
func TestIdle(t *testing.T) {
	rounds := hermetic.Number(t, "TMS_IDLE_ROUNDS", 5)
	start := sharing(t, "44M")
	one := start()
	watch := idle(t, one.number(), "--after", "100ms")
	one.comesTo(0)
	other := start() // there would be no memory for it
	require.Equal(t, "ok", other.do("check"))
	answer := one.background("check")
	waits(t, answer)
	require.Regexp(t, one.number()+`: paused, 32\.00 MiB freed in .* s, 8\.00 MiB without contents`, watch.said())
	succeeds(t, "pause", other.number())
	require.Equal(t, "ok", <-answer)
	for range rounds {
		one.comesTo(0)
		require.Equal(t, "ok", one.do("check"))
	}
	resumed := func() int { return strings.Count(watch.said(), one.number()+": called, and resumed\n") }
	require.Eventually(t, func() bool { return resumed() >= rounds+1 }, time.Minute, 5*time.Millisecond) // said later
	require.Equal(t, rounds+1, resumed())

	// A process that works only now and then is not paused either.
	for range hermetic.Often(40, 20) {
		called := time.Now()
		require.Equal(t, "ok", one.do("check"))
		if bytes := held(t, one); time.Since(called) < 100*time.Millisecond { // otherwise the machine was busy
			require.EqualValues(t, smallBytes, bytes)
		}
		time.Sleep(10 * time.Millisecond)
	}

	// An allocation that would be refused waits, too.
	one.comesTo(0)
	succeeds(t, "resume", other.number())
	other.do("own 6")
	answer = one.background("more 8")
	waits(t, answer)
	require.NoError(t, other.Process.Kill())
	require.Equal(t, "ok", <-answer)
	require.Equal(t, "ok", one.do("check"))

	// What another client has paused is left to that client, also if tms idle had paused it before.
	one.comesTo(0)
	for _, called := range []bool{false, true} {
		if called { // either may pause first then
			require.Equal(t, "ok", one.do("check"))
		}
		if out := succeeds(t, "pause", one.number()); !called {
			require.Equal(t, one.number()+": nothing to pause: it was paused until the program's next call (tms idle or "+
				"--share), and now stays so until a resume\n", out)
		}
		answer = one.background("check")
		waits(t, answer)
		succeeds(t, "resume", one.number())
		require.Equal(t, "ok", <-answer)
		if !called {
			one.comesTo(0)
		}
	}

	one.comesTo(0)
	watch.interrupted()
	require.Zero(t, held(t, one))
	require.Equal(t, "ok", one.do("check"))
	require.EqualValues(t, 40<<20, held(t, one))

	watch = idle(t, one.number(), "--after", "100ms")
	one.comesTo(0)
	require.NoError(t, one.Process.Kill())
	require.NoError(t, watch.Wait(), "%s", &watch.errors)
	require.Regexp(t, one.number()+`: has ended\n$`, watch.said())
}

// When tms idle is killed or interrupted, the next call resumes the process, as soon as there is memory.
func TestIdleIsKilled(t *testing.T) {
	start := sharing(t, "44M")
	one := start()
	for range 3 {
		watch := idle(t, one.number(), "--after", "50ms")
		one.comesTo(0)
		require.NoError(t, watch.Process.Kill())
		require.Equal(t, "ok", one.do("check"))
		require.EqualValues(t, smallBytes, held(t, one))
	}
	watch := idle(t, one.number(), "--after", "50ms")
	one.comesTo(0)
	other := start()
	answer := one.background("check")
	waits(t, answer)
	watch.interrupted()
	waits(t, answer)
	require.NoError(t, other.Process.Kill())
	require.Equal(t, "ok", <-answer)
}

// A busy device and a capture do not count as idle, and are not disturbed.
func TestIdleIsNotBusy(t *testing.T) {
	hermetic.Thorough(t)
	one := sharing(t, "44M")()
	watch := idle(t, one.number(), "--after", "300ms")
	for words, end := range map[string]string{"capture": "captured", "busy 1500": "free"} {
		var begin time.Time
		for late := true; late; { // on a busy machine it may be idle before it begins
			one.comesTo(0)
			require.Equal(t, "ok", one.do("check")) // resumes it
			begin = time.Now()
			require.Equal(t, "ok", one.do("check"))
			require.Equal(t, "ok", one.do(words))
			if late = time.Since(begin) > 200*time.Millisecond; late {
				one.do(end)
			}
		}
		for time.Since(begin) < time.Second {
			if bytes := held(t, one); time.Since(begin) < 1400*time.Millisecond { // otherwise the machine was busy
				require.EqualValues(t, smallBytes, bytes, words)
			}
			time.Sleep(5 * time.Millisecond)
		}
		one.do(end)
	}
	one.comesTo(0)
	require.Equal(t, "ok", one.do("check"))
	watch.interrupted()
}

// A program whose thread waits for a kernel is not idle, however long ago it gave the device work.
func TestWaitingIsNotIdle(t *testing.T) {
	one := sharing(t, "44M")()
	asked := time.Now()
	require.Equal(t, "ok", one.do("busy 3000"))
	begin := time.Now()
	for time.Since(begin) < 2*time.Second {
		state, err := status(one.Process.Pid, time.Minute)
		require.NoError(t, err)
		if time.Since(begin) > time.Second && time.Since(asked) < 3*time.Second { // otherwise the machine was busy
			require.Less(t, *state.IdleSeconds, 0.5)
		}
		time.Sleep(5 * time.Millisecond)
	}
	one.do("free")
}

func TestIdleIsRefused(t *testing.T) {
	ownSockets(t)
	ungated := startSteered(t, steeredProgram(t))
	fails(t, exitNoProcess, "there is no such process", "idle", "999999999")
	fails(t, exitNo, "tms run did not start it", "idle", ungated.number())
}
