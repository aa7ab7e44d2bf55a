package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/snapshot/tree"
)

// startEngine starts an engine of three processes. Their NVML has a file open that only a device of NVIDIA's driver would
// have, and gives each device the handle of the other when it is begun again.
func startEngine(t *testing.T) (s *steered, directory, file string) {
	t.Helper()
	needsCRIU(t)
	ownSockets(t)
	made, err := os.CreateTemp("/dev", "nvidia-cudasim-") // tests in PID namespaces of their own have one number
	require.NoError(t, err)
	require.NoError(t, made.Close())
	file = made.Name()
	t.Cleanup(func() { _ = os.Remove(file) })
	t.Setenv("CUDASIM_NVML_FILE", file)
	t.Setenv("CUDASIM_NVML_TURNS", "1")
	t.Setenv("CUDASIM_DEVICES", "2")
	s = startPython(t, filepath.Join("testdata", "engine.py"))
	require.Equal(t, "ok ok ok", s.do("check"))
	return s, filepath.Join(t.TempDir(), "snapshots"), file
}

// opens reports how often a process has a file open, which it may see by another name in a mount namespace of its own.
func opens(pid int, file string) (count int) {
	wanted, err := os.Stat(file)
	if err != nil {
		return 0
	}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if open, err := os.Stat(link); err == nil && os.SameFile(wanted, open) {
			count++
		}
	}
	return count
}

// Processes that have NVML or CUDA begun, and no GPU memory, are in a snapshot with the one that has some: their NVML is
// ended for it, and begun again as often, and no call of theirs sees that.
func TestAnEngineIsRestored(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	s, directory, file := startEngine(t)
	require.Equal(t, 1, opens(s.Process.Pid, file))
	fails(t, exitNoProcess, "it does not listen yet", "pause", s.number())
	first := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json"))
	require.Len(t, first.Processes, 3)
	require.Equal(t, "ok ok ok", s.do("check"))
	for _, pid := range first.Processes {
		require.Equal(t, 1, opens(pid, file))
	}
	succeeds(t, "snapshot", s.number(), directory) // each device has the first handle again
	require.Equal(t, "ok ok ok", s.do("check"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	for _, pid := range first.Processes {
		awaitEnd(t, pid)
	}

	again, is := s.restored(t, directory)
	require.ElementsMatch(t, first.Processes, is.Processes)
	require.Equal(t, "ok ok ok", again.do("check"))
	succeeds(t, "snapshot", again.number(), directory)
	require.Equal(t, "ok ok ok", again.do("check"))
	worker := strconv.Itoa(is.Processes[2])
	succeeds(t, "pause", worker, "--everything")
	require.Equal(t, 1, opens(is.Processes[2], file)) // NVML stays, as this is no snapshot
	succeeds(t, "resume", worker)
	require.Equal(t, "2 2 2", again.do("end"))
}

// sleeps reports whether a process has a thread that a snapshot would wake.
func sleeps(pid int) bool {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	return slices.ContainsFunc(names, func(path string) bool {
		name, _ := os.ReadFile(path)
		return string(name) == "tms-listener\n"
	})
}

// A tree that is refused is as it was: no process of it has been asked to listen. Two snapshots at once may both ask.
func TestAnEngineIsAskedOnceItCanBeTaken(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	s, directory, _ := startEngine(t)
	require.True(t, sleeps(s.Process.Pid))
	if s.do("ring") == "True" {
		fails(t, exitNo, "uses io_uring, which CRIU cannot dump", "snapshot", s.number(), directory)
		require.True(t, sleeps(s.Process.Pid))
	}
	require.Equal(t, "ok", s.do("unring"))
	second := steppedCommand("", "", "snapshot", s.number(), directory)
	said := new(bytes.Buffer)
	second.Stderr = said
	require.NoError(t, second.Start())
	_, words, code := command(t, "snapshot", s.number(), directory)
	failed := second.Wait()
	require.True(t, code == 0 || failed == nil, "%s%s", words, said)
	for _, words := range []string{words, said.String()} { // where one is refused, the other has it paused
		require.NotContains(t, words, "listen")
	}
	require.Eventually(t, func() bool { return !sleeps(s.Process.Pid) }, time.Minute, 5*time.Millisecond)
	require.Equal(t, "ok ok ok", s.do("check"))
}

// A child of fork has its parent's files of NVML. If it calls NVML, it takes part; if it does not, nothing closes them in
// the child: the words name it and the file, and all go on.
func TestAnEngineWithAForkedChild(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // NVML shows no other program
		return
	}
	s, directory, file := startEngine(t)
	for _, word := range []string{"fork", "idle"} {
		require.Equal(t, "ok", s.do(word))
		if word == "fork" {
			succeeds(t, "snapshot", s.number(), directory)
		} else {
			require.Contains(t, fails(t, exitNo, "", "snapshot", s.number(), directory),
				file+" open, and tms cannot have it closed: it does not listen yet")
		}
		require.Equal(t, "ok ok ok", s.do("check"))
		require.Equal(t, "0", s.do("reap"))
	}
	succeeds(t, "snapshot", s.number(), directory)
	require.Equal(t, "ok ok ok", s.do("check"))
}

// A call that does not return, and a copy of NVML whose calls do not come by the library, are refused with words, and all
// go on. A snapshot that is forced names the file that is still open.
func TestAnEngineWhoseNVMLCannotBeEnded(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	s, directory, _ := startEngine(t)
	require.Equal(t, "ok", s.do("wait"))
	fails(t, exitNo, "a thread of the program was in nvmlEventSetWait_v2 for 5.0 s", "snapshot", s.number(), directory)
	require.Equal(t, "ok ok ok", s.do("check"))

	s, directory, file := startEngine(t)
	require.Equal(t, "ok", s.do("copy"))
	fails(t, exitNo, "the program uses two copies of NVML (it has asked both for nvmlInit_v2); or force the snapshot",
		"snapshot", s.number(), directory)
	require.Equal(t, "ok ok ok", s.do("check"))
	fails(t, exitNo, "still has "+file+" open after all of it was paused", "snapshot", s.number(), directory, "--force")
	require.Equal(t, "ok ok ok", s.do("check"))
}

// Whatever ends or stops the command, at whichever step, NVML is there again, and no call sees that it was not.
func TestAnEngineGoesOnAtEachStep(t *testing.T) {
	hermetic.Thorough(t)
	needsCRIU(t)
	if !alone(t) {
		return
	}
	s, _, file := startEngine(t)
	for _, step := range []string{"park", "dump", "contents", "commit", "pages", "images"} {
		for _, what := range []string{"fail", "kill", "stop"} {
			if step == "park" && what == "stop" { // before anything has been asked for
				continue
			}
			t.Run(step+" "+what, func(t *testing.T) {
				directory := filepath.Join(t.TempDir(), "snapshots")
				_, cont := steppedRun(t, steppedCommand(step, what, "snapshot", s.number(), directory))
				if what != "fail" { // the driver may have it
					s.untraced(t)
					require.Eventually(t, func() bool { _, _, code := command(t, "resume", "--all"); return code == 0 },
						time.Minute, 50*time.Millisecond)
				}
				require.Equal(t, "ok ok ok", s.do("check"))
				if what == "stop" {
					cont()
				}
				s.untraced(t)
				require.Equal(t, "ok ok ok", s.do("check"))
				require.Equal(t, 1, opens(s.Process.Pid, file))
			})
		}
	}
	succeeds(t, "snapshot", s.number(), filepath.Join(t.TempDir(), "snapshots"))
	require.Equal(t, "ok ok ok", s.do("check"))
	require.Equal(t, "2 2 2", s.do("end"))
}
