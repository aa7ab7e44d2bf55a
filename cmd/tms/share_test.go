package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/group"
	"tms/internal/turns"
)

// sharer is a running program of tms run --share.
type runningSharer struct {
	*exec.Cmd
	out, errors bytes.Buffer
}

// sharesDevice returns what starts programs on one device of 100 MiB.
func sharesDevice(t *testing.T) (start func(flags string, arguments ...any) *runningSharer) {
	t.Helper()
	ownSockets(t)
	program := fixture(t, "shares")
	return func(flags string, arguments ...any) *runningSharer {
		t.Helper()
		words := append(append([]string{"run"}, strings.Fields(flags)...), "--", program)
		s := &runningSharer{Cmd: exec.Command(tms, append(words, strings.Fields(fmt.Sprintln(arguments...))...)...)}
		s.Env = append(os.Environ(), "LD_LIBRARY_PATH="+built(t, "sim"), "CUDASIM_MEMORY=100M",
			"TMS_LIBRARY="+built(t, "lib", "libtms.so"), "TMS_COMMAND="+tms,
			"CUDASIM_SHARED="+filepath.Base(os.Getenv("TMPDIR")))
		s.Stdout, s.Stderr = &s.out, &s.errors
		require.NoError(t, s.Start())
		t.Cleanup(func() {
			_ = s.Process.Kill()
			_ = s.Wait()
		})
		return s
	}
}

// ends waits for the program's end, and returns its last line.
func (s *runningSharer) ends(t *testing.T) string {
	t.Helper()
	require.NoError(t, s.Wait(), "%s%s", &s.out, &s.errors)
	require.Empty(t, s.errors.String())
	lines := strings.Split(strings.TrimSpace(s.out.String()), "\n")
	return lines[len(lines)-1]
}

// has waits until the program has these bytes of the device.
func (s *runningSharer) has(t *testing.T, bytes uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		state, err := status(s.Process.Pid, time.Minute)
		return err == nil && len(state.Stats.Devices) > 0 && len(state.Stats.Devices[0].Tags) > 0 &&
			state.Stats.Devices[0].Tags[0].PhysicalBytes >= bytes
	}, time.Minute, 5*time.Millisecond)
}

// Programs that do not fit together all end with what they computed, in turns.
func TestShare(t *testing.T) {
	start := sharesDevice(t)
	rounds := hermetic.Often(30000, 4000)
	var all []*runningSharer
	for range 3 {
		all = append(all, start("--share --at-least 100ms", 60, 4, rounds, 0))
	}
	for _, s := range all {
		require.Equal(t, fmt.Sprint(rounds*100), s.ends(t))
	}
}

// A program gets nearly the whole device step by step, while two others that hold the rest have no work.
func TestShareStepByStep(t *testing.T) {
	start := sharesDevice(t)
	others := []*runningSharer{start("--share", 44, 1, 3, 500), start("--share", 44, 1, 3, 500)}
	require.Equal(t, "5000", start("--share", 92, 23, 50, 0).ends(t))
	for _, s := range others {
		require.Equal(t, "300", s.ends(t))
	}
}

// overhead makes contexts and kernels' code take these MiB of a device that programs share.
func overhead(t *testing.T, context, code int) {
	t.Helper()
	t.Setenv("CUDASIM_CONTEXT", fmt.Sprint(context<<20))
	t.Setenv("CUDASIM_CODE", fmt.Sprint(code<<20))
}

// startSharing starts a steered program that shares a device of 100 MiB.
func startSharing(t *testing.T, environment ...string) *steered {
	t.Helper()
	return startSteered(t, steeredProgram(t), append([]string{reaching(t), "CUDASIM_MEMORY=100M", "TMS_SHARE=1",
		"TMS_COMMAND=" + tms, "CUDASIM_SHARED=" + filepath.Base(os.Getenv("TMPDIR"))}, environment...)...)
}

// Memory that is not pausable finds room, too: programs whose memory would fill the device run kernels, whose code the
// driver loads then.
func TestShareLeavesRoomForCode(t *testing.T) {
	overhead(t, 4, 6)
	start := sharesDevice(t)
	one := start("--share", 46, 1, 30, 10)
	one.has(t, 46<<20)
	require.Equal(t, "1000", start("--share", 40, 5, 10, 0).ends(t)) // 4 + 46 + 6 and 4 + 40 MiB are all
	require.Equal(t, "3000", one.ends(t))
}

// Programs start although another has all memory, and get their contexts from it.
func TestShareOfAFullDevice(t *testing.T) {
	overhead(t, 8, 0)
	start := sharesDevice(t)
	one := start("--share", 92, 1, 1000000, 1)
	one.has(t, 92<<20)
	require.Equal(t, "1000", start("--share", 60, 1, 10, 0).ends(t))
	one.has(t, 92<<20)
	require.Equal(t, "ok", startSharing(t).do("check")) // the library makes this context
}

// A kernel whose code finds no room has others make some, even if what does not share took the reserve.
func TestShareMakesRoomForCode(t *testing.T) {
	overhead(t, 0, 4)
	sharesDevice(t)
	one, other := startSharing(t), startSharing(t)
	require.Equal(t, "ok", one.do("unseen 33")) // of 36
	require.Equal(t, "0", other.do("launch"))
	require.EqualValues(t, 24<<20, held(t, one), "its cache is paused")
	require.Equal(t, "ok", other.do("check"))
	require.Equal(t, "ok", one.do("check"))
}

// What can never be had is refused at once, as CUDA refuses it.
func TestShareRefuses(t *testing.T) {
	start := sharesDevice(t)
	require.Regexp(t, "^2 .*larger than the device's memory", start("--share", 200, 1, 1, 0).ends(t))
	limited := start("--limit 40M", 64, 4, 1, 0)
	require.NoError(t, limited.Wait())
	const words = `allocating 16\.00 MiB on device 0: .*may have on the device.*: it has 32\.00 MiB of 40\.00 MiB`
	require.Regexp(t, "2 "+words+"$", strings.TrimSpace(limited.out.String()))
	require.Regexp(t, "^tms: "+words+` \(said once`, limited.errors.String())

	alone := start("", 60, 1, 1000000, 1) // does not share
	sharing := start("--share", 20, 1, 1000000, 1)
	alone.has(t, 60<<20)
	sharing.has(t, 20<<20)
	require.Regexp(t, `^2 60\.00 MiB are needed, .* are free and others could lend 20\.00 MiB$`,
		start("--share", 60, 1, 1, 0).ends(t))
}

// Yielded memory that no thread waits for is not resumed: it would take the room that is made for others.
func TestShareLeavesMemoryThatNoThreadWaitsFor(t *testing.T) {
	sharesDevice(t)
	one := startSharing(t)
	process, err := client.Dial(one.Process.Pid)
	require.NoError(t, err)
	defer process.Close()
	reply, err := process.Do(t.Context(), control.SteerRequest{Op: control.Pause, Yield: true})
	require.NoError(t, group.Failure(reply, err))
	succeeds(t, "share", one.number())
	require.Zero(t, held(t, one))
	require.Equal(t, "ok", one.do("check"))
}

// A program is not chosen while it captures a stream.
func TestShareAndCapture(t *testing.T) {
	start := sharesDevice(t)
	one := startSharing(t)
	one.do("capture")
	other := start("--share", 80, 1, 10, 0)
	explains := func(words string) {
		require.Eventually(t, func() bool {
			out, _, _ := command(t, "share", strconv.Itoa(other.Process.Pid), "--explain")
			return strings.Contains(out, words)
		}, time.Minute, 20*time.Millisecond)
	}
	explains("it waits until " + one.number() + " can be paused")
	require.Regexp(t, fmt.Sprintf(`(?m)^%d: it waits until .*; it has waited \d+\.\d s for 80\.00 MiB on GPU-`,
		other.Process.Pid), succeeds(t, "ps", "--no-trunc"))
	require.EqualValues(t, smallBytes, held(t, one))
	for _, helper := range kin(map[int]bool{other.Process.Pid: true}) {
		_ = syscall.Kill(helper, syscall.SIGTSTP) // as a terminal stops the program and what it has started
	}
	one.do("captured")
	require.Equal(t, "1000", other.ends(t))
	require.Equal(t, "ok", one.do("check"))
}

// A process that is stopped while it is paused for another does not keep the device locked for all.
func TestShareAndStop(t *testing.T) {
	start := sharesDevice(t)
	one := startSharing(t, "TMS_SHARE_AT_LEAST=0")
	one.do("busy 1000000")
	other := start("--share", 80, 1, 10, 0)
	require.Eventually(t, func() bool {
		state, err := status(one.Process.Pid, time.Minute)
		return err == nil && state.Doing == control.Pause
	}, time.Minute, 5*time.Millisecond)
	stop(t, one.Process)
	user := os.Geteuid()
	var locks []string
	for _, directory := range control.Directories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), user) {
		found, err := filepath.Glob(directory + "/GPU-*.lock")
		require.NoError(t, err)
		locks = append(locks, found...)
	}
	require.Len(t, locks, 2, "each process may look in another directory")
	for _, path := range locks {
		file, err := os.Open(path)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, file.Close())
	}
	require.NoError(t, one.Process.Signal(syscall.SIGCONT))
	require.NoError(t, one.Process.Kill())
	require.Equal(t, "1000", other.ends(t))
}

// Processes that find one another lock a device for one another, even with other directories of their own.
func TestTheLockOfADevice(t *testing.T) {
	ownSockets(t)
	unlock, err := group.Lock("GPU-1")
	require.NoError(t, err)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	taken := make(chan string)
	go func() {
		unlock, err := group.Lock("GPU-1")
		assert.NoError(t, err)
		unlock()
		close(taken)
	}()
	waits(t, taken)
	unlock()
	<-taken
}

// No more is paused than is needed. A program of higher priority goes on.
func TestShareTakesLittle(t *testing.T) {
	start := sharesDevice(t)
	first, one := startSharing(t, "TMS_SHARE_PRIORITY=2"), startSharing(t)
	one.do("fill")
	for _, s := range []*steered{first, one} {
		require.Eventually(t, func() bool {
			state, err := status(s.Process.Pid, time.Minute)
			return err == nil && state.IdleSeconds != nil && *state.IdleSeconds >= turns.Grace.Seconds()
		}, time.Minute, 5*time.Millisecond)
	}
	other := start("--share", 36, 1, 1000000, 1)
	other.has(t, 36<<20)
	require.EqualValues(t, 24<<20, held(t, one), "its cache is paused")
	require.EqualValues(t, 32<<20, held(t, first))
	require.Equal(t, "ok", first.do("check"))
	require.NoError(t, other.Process.Kill())
	require.Equal(t, "ok", one.do("check"))
	one.comesTo(32 << 20)
	require.Equal(t, "ok", one.do("filled"), "no client told it, so what has no backup comes back, too")
}

// tms ps and tms metrics show that a program waits, and for which.
func TestShareIsSeen(t *testing.T) {
	start := sharesDevice(t)
	works := start("--share --at-least 1h", 60, 1, 1000000, 0)
	works.has(t, 60<<20)
	waits := start("--share", 60, 6, 1, 0)
	pid := strconv.Itoa(waits.Process.Pid)
	require.Eventually(t, func() bool {
		out, _, _ := command(t, "ps", pid)
		return strings.Contains(out, " waits ") && strings.Contains(out, fmt.Sprint("it waits for ", works.Process.Pid))
	}, time.Minute, 10*time.Millisecond)
	_, address := serving(t)
	require.Positive(t, scrape(t, address).values("tms_process_memory_wait_seconds", "pid="+pid)[0])
	require.Zero(t, scrape(t, address).values("tms_process_memory_wait_seconds", fmt.Sprint("pid=", works.Process.Pid))[0])
}

// A report shows when a program waited for memory: for an allocation, or after it was paused.
func TestShareIsReported(t *testing.T) {
	start := sharesDevice(t)
	traces := []string{t.TempDir() + "/one", t.TempDir() + "/other"}
	one := start("--share --at-least 0s --trace "+traces[0], 60, 1, 3000, 1)
	one.has(t, 60<<20)
	require.Equal(t, "1000", start("--share --trace "+traces[1], 60, 1, 10, 0).ends(t))
	require.Equal(t, "300000", one.ends(t))
	for _, path := range traces {
		require.Regexp(t, `"name":"wait",.*"kind":"wait",.*"bound":"waiting"`,
			succeeds(t, "report", path, "--format", "perfetto", "-o", "-"))
	}
}

// A program's own resume has others make room, too; and one whose command is not there runs on, if memory is free.
func TestShareAndResume(t *testing.T) {
	start := sharesDevice(t)
	shares := []string{reaching(t), "CUDASIM_MEMORY=100M", "TMS_SHARE=1", "TMS_COMMAND=" + tms,
		"CUDASIM_SHARED=" + filepath.Base(os.Getenv("TMPDIR"))}
	one := startSteered(t, steeredProgram(t), shares...)
	one.do("pause")
	other := start("--share", 80, 1, 3000, 1)
	other.has(t, 80<<20)
	require.Equal(t, "0 ", one.do("again"))
	require.Equal(t, "ok", one.do("check"))
	require.Equal(t, "300000", other.ends(t))

	shares[3] = "TMS_COMMAND=/no/such/command"
	var errors_ bytes.Buffer
	command := exec.Command(steeredProgram(t))
	command.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+built(t, "sim"), "TMS_CONTROL=1"), shares...)
	command.Stderr = &errors_
	alone := startToListen(t, command)
	require.Equal(t, "ok", one.do("more 30"))
	third := start("--share", 60, 1, 100, 0) // takes the place of both
	require.Equal(t, "10000", third.ends(t))
	require.Equal(t, "ok", alone.do("check"))
	require.Equal(t, "ok", one.do("check"))
	require.NoError(t, alone.Process.Kill())
	require.Error(t, alone.Wait())
	require.Contains(t, errors_.String(), "/no/such/command cannot be started (No such file or directory), and other "+
		"processes do not make room for this one; name the command in TMS_COMMAND")
}

// A program that cannot start tms share for a while gets its memory back once it can, though the others stay idle.
func TestShareIsStartedAgain(t *testing.T) {
	sharesDevice(t)
	missing := filepath.Join(t.TempDir(), "tms")
	said, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer func() { _ = said.Close() }()
	command := exec.Command(steeredProgram(t))
	command.Env = append(os.Environ(), reaching(t), "LD_LIBRARY_PATH="+built(t, "sim"), "CUDASIM_MEMORY=100M",
		"CUDASIM_SHARED="+filepath.Base(os.Getenv("TMPDIR")), "TMS_CONTROL=1", "TMS_SHARE=1", "TMS_COMMAND="+missing)
	command.Stderr = said
	lender, other := startToListen(t, command), startSharing(t)
	require.Equal(t, "ok", other.do("more 60"))
	require.Zero(t, held(t, lender))
	checked := make(chan string)
	go func() { checked <- lender.do("check") }()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(said.Name())
		return err == nil && strings.Contains(string(text), missing+" cannot be started")
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, os.Symlink(tms, missing))
	require.Equal(t, "ok", <-checked)
	require.Equal(t, "ok", other.do("check"))
}

// kin lists the processes of this user whose parent is one of these: a program starts tms share and nothing else.
func kin(parents map[int]bool) (found []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile("/proc/" + entry.Name() + "/stat")
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 {
			if parent, _ := strconv.Atoi(fields[1]); parents[parent] {
				found = append(found, pid)
			}
		}
	}
	return found
}

// If one is killed, the others go on to their ends. TESTS_SHARE_KILLS sets how often.
func TestShareAndKill(t *testing.T) {
	hermetic.Thorough(t)
	start := sharesDevice(t)
	const rounds = 3000
	kills := hermetic.Number(t, "TESTS_SHARE_KILLS", hermetic.Often(30, 12))
	begin := func() *runningSharer {
		return start("--share --at-least 50ms", 40+4*rand.IntN(6), 4, rounds, rand.IntN(2))
	}
	var mutex sync.Mutex
	running := map[int]bool{}
	killed := map[int]bool{}
	over := make(chan bool)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				s := begin()
				mutex.Lock()
				running[s.Process.Pid] = true
				mutex.Unlock()
				err := s.Wait()
				mutex.Lock()
				delete(running, s.Process.Pid)
				if !killed[s.Process.Pid] {
					assert.NoError(t, err, "%s%s", &s.out, &s.errors)
					assert.Equal(t, fmt.Sprintf("has it\n%d\n", rounds*100), s.out.String(), "%s", &s.errors)
				}
				mutex.Unlock()
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	helpers := 0
	for done := 0; done < kills || helpers < kills/4; {
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		mutex.Lock()
		victims := kin(running) // as many helpers as programs, over time
		if rand.IntN(2) == 0 {
			victims = nil
			for pid := range running {
				victims = append(victims, pid)
			}
		}
		if len(victims) > 0 {
			pid := victims[rand.IntN(len(victims))]
			killed[pid] = true
			if process, err := os.FindProcess(pid); err == nil && process.Kill() == nil {
				if done++; !running[pid] {
					helpers++
				}
				if done%10000 == 0 { // for the soak, which takes hours
					t.Logf("%d killed", done)
				}
			}
		}
		mutex.Unlock()
	}
	close(over)
	all.Wait()
}

// A turn lasts on while its program waits for more memory, and others can see when it last grew.
func TestShareSeesGrowth(t *testing.T) {
	start := sharesDevice(t)
	one := start("--share --at-least 3600s", 60, 1, 1000000, 1)
	one.has(t, 60<<20)
	other := start("--share", 60, 2, 1000000, 1)
	awaits := func(seen func(*control.Share) bool) (last *control.Share) {
		t.Helper()
		require.Eventually(t, func() bool {
			state, err := status(other.Process.Pid, time.Minute)
			last = state.Share
			return err == nil && last != nil && seen(last)
		}, time.Minute, 5*time.Millisecond)
		return last
	}
	first := awaits(func(s *control.Share) bool { return s.Waited > 0.1 }) // it may have waited a moment for the reserve
	later := awaits(func(s *control.Share) bool {                          // the two are read one after the other, so they differ a little
		waited := s.Waited - first.Waited
		return waited > 0.2 && s.Ran-first.Ran < waited/2
	})
	require.NoError(t, one.Process.Kill())
	awaits(func(s *control.Share) bool { return s.Grew >= 0 && s.Waited < 0 && s.Ran > later.Ran })
}

// A priority that is no finite number is refused: JSON has no word for it.
func TestSharePriorityIsFinite(t *testing.T) {
	t.Setenv("TMS_LIBRARY", built(t, "lib", "libtms.so"))
	for _, words := range []string{"nan", "inf", "-inf"} {
		_, errors, code := command(t, "run", "--share", "--priority="+words, "--", "true")
		require.Equal(t, 2, code)
		require.Contains(t, errors, "give a number, such as 1")
	}
	sharesDevice(t)
	one := startSharing(t, "TMS_SHARE_PRIORITY=inf")
	state, err := status(one.Process.Pid, time.Minute)
	require.NoError(t, err)
	require.Zero(t, state.Share.Priority)
}
