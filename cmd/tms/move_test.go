package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/fleet"
	"tms/internal/group"
)

// mobile is a process of tms run with 24 MiB of weights, 8 of cache and 40 that are not pausable, on three devices of
// 128 MiB, and another that sees how much of each is free.
type mobile struct{ *whole }

const everythingOfIt = 72

func startMobile(t *testing.T, environment ...string) *mobile {
	t.Helper()
	ownSockets(t)
	for name, value := range map[string]string{"LD_LIBRARY_PATH": built(t, "sim"), "CUDASIM_DEVICES": "3",
		"CUDASIM_MEMORY": "128M", "CUDASIM_SHARED": filepath.Base(os.Getenv("TMPDIR"))} {
		t.Setenv(name, value) // for the command, too
	}
	m := &mobile{&whole{}}
	m.steered = m.start(t, environment...)
	m.do("own 40")
	elsewhere := t.TempDir() // --all does not find it
	m.other = m.start(t, append(environment, "XDG_RUNTIME_DIR="+elsewhere, "TMPDIR="+elsewhere)...)
	m.other.do("pause")
	m.on(0)
	return m
}

func (m *mobile) start(t *testing.T, environment ...string) *steered {
	t.Helper()
	return startSteered(t, steeredProgram(t), append([]string{reaching(t), "CUDASIM_MEMORY=128M"}, environment...)...)
}

// free is how many MiB of each device are free.
func (m *mobile) free() (mebibytes [3]int) {
	m.t.Helper()
	for device := range mebibytes {
		mebibytes[device] = m.other.count(fmt.Sprint("calls free:", device)) >> 20
	}
	return mebibytes
}

// uuidOf returns that of one of the machine's devices.
func uuidOf(device int) string {
	return fmt.Sprintf("GPU-63756461-7369-6d2d-6465-766963652d%02x", device)
}

// at returns where the process says that its device 0 is.
func (m *mobile) at() (uuid string) {
	m.t.Helper()
	states := parsed[[]fleet.Process](m.t, succeeds(m.t, "ps", "--json", m.number()))
	require.Len(m.t, states, 1)
	require.NotEmpty(m.t, states[0].Devices)
	require.Equal(m.t, states[0].Stats.Devices[0].UUID, states[0].Devices[0].UUID)
	return states[0].Devices[0].UUID
}

// allOn returns what free returns when the process is on a device.
func allOn(device int) (mebibytes [3]int) {
	mebibytes = [3]int{128, 128, 128}
	mebibytes[device] -= everythingOfIt
	return mebibytes
}

// leaves waits until each device has these MiB free. On a busy machine some are given back after the command's end.
func (m *mobile) leaves(mebibytes [3]int) {
	m.t.Helper()
	var free [3]int
	require.Eventually(m.t, func() bool { free = m.free(); return free == mebibytes }, time.Minute, 10*time.Millisecond,
		"not %v, but %v", mebibytes, &free)
}

// on checks that all of the process is on a device, where it goes on with what it had.
func (m *mobile) on(device int) {
	m.t.Helper()
	m.leaves(allOn(device))
	require.Equal(m.t, uuidOf(device), m.at())
	m.do("check")
	require.Equal(m.t, "0", m.do("stats"))
}

// comes is the same for a process that does the rest by itself.
func (m *mobile) comes(device int) {
	m.t.Helper()
	require.Eventually(m.t, func() bool { return m.do("stats") == "0" && m.free() == allOn(device) },
		time.Minute, 10*time.Millisecond)
	m.on(device)
}

func (m *mobile) move(to string) (stdout string) {
	m.t.Helper()
	return succeeds(m.t, "move", m.number(), "--to", to)
}

func TestAMoveThereAndBack(t *testing.T) {
	m := startMobile(t)
	m.do("more 4", "pause cache") // by the program: that stays paused
	m.other.do("calls free:0")
	require.Regexp(t, `^\d+: moved from GPU 0 to GPU 1 in \d+\.\d\d s \(pause .*, checkpoint .*, restore .*, resume .*\)`+
		`; 28\.00 MiB of contents from GPU to GPU\n$`, m.move("1"))
	m.leaves([3]int{128, 128 - 68, 128})
	require.Regexp(t, `cache +8.0+ MiB +0 paused`, succeeds(t, "ps"))
	m.do("resume cache", "fill")
	for _, where := range []struct {
		name  string
		place int
	}{{uuidOf(2), 2}, {"0", 0}, {uuidOf(1), 1}} {
		require.Contains(t, m.move(where.name), fmt.Sprint("to GPU ", where.place, " in "))
		free := [3]int{128, 128, 128}
		free[where.place] -= 76
		m.leaves(free)
		require.Equal(t, uuidOf(where.place), m.at())
		m.do("check", "filled")
	}
	require.Contains(t, succeeds(t, "ps", "--bytes"), "\n  GPU 1, cudasim, device 0: 76.0 MiB by NVML\n    "+uuidOf(1)+"\n")
	_, address := serving(t)
	require.Equal(t, []float64{76 << 20}, scrape(t, address).values("tms_device_process_bytes", "pid="+m.number(),
		"device=0", "uuid="+uuidOf(1)))

	outcomes := parsed[[]group.Outcome](t, succeeds(t, "move", m.number(), "--to", "0", "--json"))
	require.Len(t, outcomes, 1)
	require.True(t, outcomes[0].OK)
	require.EqualValues(t, 36<<20, outcomes[0].Bytes)
	require.Zero(t, outcomes[0].WithoutContents, "the program is not told, so its cache comes along")
	done := outcomes[0].Move
	require.Equal(t, group.Legs{{From: uuidOf(1), To: uuidOf(0), Bytes: 76 << 20, Free: 128 << 20,
		Room: 52 << 20}}, done.Legs)
	require.EqualValues(t, 36<<20, outcomes[0].MovedBytes)
	require.Positive(t, min(done.Pause, done.Checkpoint, done.Restore, done.Resume))
	require.InDelta(t, outcomes[0].Seconds, done.Pause+done.Checkpoint+done.Restore+done.Resume, outcomes[0].Seconds)
	m.do("check")
}

func TestAProgramThatWorksIsMoved(t *testing.T) {
	for _, does := range []string{"work", "poll"} {
		t.Run(does, func(t *testing.T) {
			m := startMobile(t)
			m.do(does)
			for i := range hermetic.Often(12, 3) {
				m.advances("cycles")
				m.move([]string{"1", "2", "0"}[i%3])
			}
			m.advances("cycles")
			m.do("calm", "check")
		})
	}
}

// eachCall tries each call of the driver that a move makes, by name and number.
func eachCall(try func(call string) (made bool)) (tried int) {
	for _, name := range []string{"cuDriverGetVersion", "cuInit", "cuCheckpointProcessGetState",
		"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
		"cuCheckpointProcessUnlock"} {
		for nth := 1; try(fmt.Sprintf("%s:%d", name, nth)); nth++ {
			tried++
		}
	}
	return tried
}

// Whichever call of the driver fails, the process goes on where it was.
func TestAFailedMove(t *testing.T) {
	hermetic.Thorough(t)
	m := startMobile(t)
	tried := eachCall(func(call string) bool {
		t.Setenv("CUDASIM_FAIL", call+":999")
		_, stderr, ended := command(t, "move", m.number(), "--to", "1")
		t.Setenv("CUDASIM_FAIL", "")
		if ended == 0 {
			m.move("0")
			return false
		}
		t.Log(call, stderr)
		m.on(0)
		return true
	})
	require.GreaterOrEqual(t, tried, 9)
	for planned, words := range map[string]string{
		"cuInit:1:3,cuInit:2:3,cuInit:3:3":    "cuInit: initialization error (3); it goes on as before",
		"cuCheckpointProcessLock:1:600":       "device not ready (600)); it goes on as before",
		"cuCheckpointProcessCheckpoint:1:801": "a part of a GPU (MIG); it goes on as before",
		"cuCheckpointProcessRestore:1:999":    "unknown error (999); it goes on as before",
	} {
		m.spoiled(planned, words, "move", m.number(), "--to", "1", "--timeout", "1")
		m.on(0)
	}
	// The command says what it cannot undo, and a resume, or the next move, does it.
	m.spoiled("cuCheckpointProcessRestore:1:999,cuCheckpointProcessRestore:2:999", "tms resume "+m.number()+" tries again",
		"move", m.number(), "--to", "1")
	succeeds(t, "resume", m.number())
	m.on(0)
	m.spoiled("cuCheckpointProcessUnlock:1:999,cuCheckpointProcessCheckpoint:2:999",
		"it cannot go back either (cuCheckpointProcessCheckpoint: unknown error (999)); it goes on moved from GPU 0 to GPU 1",
		"move", m.number(), "--to", "1")
	m.on(1)
}

// The destination has no memory any more when the process takes its own again.
func TestAResumeThatFailsThere(t *testing.T) {
	m := startMobile(t, "CUDASIM_FAIL=cuMemCreate:7:2") // after two segments, and 4 chunks of contents
	m.refused("32.00 MiB are needed; it goes on as before", "move", m.number(), "--to", "1")
	m.on(0)
	m.move("1")
	m.on(1)
}

// Whichever call of the driver fails in the process, it goes on, where it was or where it goes, with what it had.
func TestAMoveThatFailsInTheProcess(t *testing.T) {
	hermetic.Thorough(t)
	m := startMobile(t)
	tried, back, at := 0, 0, 0
	for _, call := range []string{"cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap",
		"cuMemSetAccess", "cuMemcpyDtoDAsync", "cuStreamCreate", "cuStreamSynchronize", "cuMemUnmap", "cuMemRelease",
		"cuMemImportFromShareableHandle"} {
		for nth, none := 1, false; !none; nth++ {
			fired := m.do("fired")
			m.do(fmt.Sprint("fail ", call, " ", nth))
			_, stderr, ended := command(t, "move", m.number(), "--to", fmt.Sprint(1-at))
			none = m.do("fired") == fired
			m.do("fail")
			if none {
				require.Zero(t, ended, stderr)
				require.Greater(t, nth, 1, "%s is never called", call)
			} else {
				t.Log(call, nth, ended, stderr)
				tried++
			}
			if ended == 0 {
				at = 1 - at
			} else {
				back++
			}
			m.comes(at)
		}
	}
	require.Greater(t, tried, 20)
	require.Greater(t, back, 10)
}

// Without peer access, or room, contents go through host memory.
func TestAMoveThroughHostMemory(t *testing.T) {
	t.Setenv("CUDASIM_PEERS", "0")
	m := startMobile(t)
	out := succeeds(t, "move", m.number(), "--to", "1", "--dry-run")
	require.Contains(t, out, "128.00 MiB free; contents go through host memory\n")
	require.Contains(t, out, "would take 32.00 MiB of host memory for contents")
	require.NotContains(t, m.move("1"), "from GPU to GPU")
	m.on(1)
}

func TestContentsWithoutRoomGoThroughHostMemory(t *testing.T) {
	m := startMobile(t)
	m.do("more 12", "pause cache")
	hog := m.start(t)
	succeeds(t, "move", hog.number(), "--to", "1")
	out := succeeds(t, "move", m.number(), "--to", "1", "--dry-run") // 96 MiB are free for 76
	require.Contains(t, out, "would take 36.00 MiB of host memory for contents")
	require.Contains(t, m.move("1"), "12.00 MiB of contents from GPU to GPU\n")
	m.leaves([3]int{128, 128 - 76 - 32, 128})
	m.do("check")
	hog.do("check")
}

// Contents that have no room beside the process still wait there if each part, once it is back, makes room for the next.
func TestContentsReturnInTurn(t *testing.T) {
	m := startMobile(t, "TMS_EXTENT_BYTES=1")
	m.do("pause weights", "more 4", "more 4", "more 4", "more 4", "more 4", "more 4")
	hog := m.start(t)
	succeeds(t, "move", hog.number(), "--to", "1")
	require.Eventually(t, func() bool { // the system has back where the hog's contents waited
		out := succeeds(t, "move", m.number(), "--to", "1", "--dry-run") // for 72 MiB, of which 32 are contents
		return strings.Contains(out, "96.00 MiB free")
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, m.move("1"), "32.00 MiB of contents from GPU to GPU\n")
	m.leaves([3]int{128, 128 - 72 - 32, 128})
	succeeds(t, "move", hog.number(), "--to", "2")
	m.do("resume weights", "check")
	hog.do("check")
}

// A child that a thread forks during the move does not keep the memory.
func TestAChildHoldsNoneOfTheContents(t *testing.T) {
	m := startMobile(t)
	dies(t, "Restore:1", "move", m.number(), "--to", "1")
	m.leaves([3]int{128, 128 - 32, 128})
	m.do("child")
	m.move("1")
	m.on(1)
}

// Wherever the command dies, the next move does all of it, and a resume makes the process go on where it then is.
func TestAMoveThatDies(t *testing.T) {
	hermetic.Thorough(t)
	m := startMobile(t)
	at := 0
	for _, next := range []string{"move", "resume"} {
		tried := eachCall(func(call string) bool {
			there := 1 - at
			c := exec.Command(tms, "move", m.number(), "--to", fmt.Sprint(there))
			c.Env = append(os.Environ(), "CUDASIM_FAIL="+call+":kill")
			if c.Run() == nil {
				at = there
				return false
			}
			require.Equal(t, syscall.SIGKILL, c.ProcessState.Sys().(syscall.WaitStatus).Signal(), call)
			require.Contains(t, succeeds(t, "ps"), m.number())
			if next == "move" {
				out, stderr, code := command(t, "move", m.number(), "--to", fmt.Sprint(there))
				require.True(t, code == 0 || strings.Contains(stderr, "it is there already: it is on GPU "+fmt.Sprint(there)),
					stderr)
				t.Log(call, out, stderr)
				at = there
			} else {
				succeeds(t, "resume", m.number())
				require.Eventually(m.t, func() bool { return m.do("stats") == "0" }, time.Minute, 10*time.Millisecond)
				m.do("check")
				if m.at() == uuidOf(there) {
					at = there
				}
			}
			m.comes(at)
			return true
		})
		require.GreaterOrEqual(t, tried, 9)
	}
}

// What was paused with everything comes back where it is moved.
func TestWhatIsPausedIsMoved(t *testing.T) {
	m := startMobile(t)
	m.whole.pause()
	require.Equal(t, m.number()+": would move 72.00 MiB from GPU 0 to GPU 2; 128.00 MiB free\n",
		succeeds(t, "move", m.number(), "--to", "2", "--dry-run"))
	m.leaves([3]int{128, 128, 128})
	require.Equal(t, uuidOf(0), m.at())
	m.spoiled("cuCheckpointProcessRestore:1:999", "unknown error (999); it stays paused", "move", m.number(), "--to", "2")
	m.leaves([3]int{128, 128, 128})
	m.move("2")
	m.on(2)
}

func TestMovesThatAreRefused(t *testing.T) {
	m := startMobile(t, "CUDASIM_NAME=one,other,one")
	t.Setenv("CUDASIM_NAME", "one,other,one")
	refused := func(words string, arguments ...string) {
		t.Helper()
		arguments = append([]string{"move", m.number()}, arguments...)
		_, dry, code := command(t, append(arguments, "--dry-run")...)
		require.Equal(t, exitNo, code, dry)
		require.Contains(t, dry, words)
		m.refused(words, arguments...)
		m.on(0)
	}
	refused("GPU 0 is a one, and GPU 1 a other: the driver moves a process only between GPUs of one model", "--to", "1")
	refused("it is there already: it is on GPU 0", "--to", "0")
	refused(`there is no GPU "3" here: give a number or a UUID that nvidia-smi -L lists`, "--to", "3")
	refused(`there is no GPU "GPU-6" here`, "--to", "GPU-6")
	refused("it does not use the GPU: it is on GPU 0", "--from", "1", "--to", "2")
	refused("0=1,0=2: each GPU can go to one other, and each be taken once", "--map", "0=1,0=2")
	refused("0=1,2=1: each GPU can go to one other", "--map", "0=1,2=1")

	hog := m.start(t)
	succeeds(t, "move", hog.number(), "--to", "2")
	hog.do("own 26")
	m.refused("GPU 2 has 70.00 MiB free, and 72.00 MiB are needed there", "move", m.number(), "--to", "2")
	stopped(t, hog)

	m.do("export")
	refused("it has called cudaIpcGetMemHandle, and managed memory, multicast objects, or memory that processes share "+
		"cannot be checkpointed\n", "--to", "2")
	t.Setenv("LD_LIBRARY_PATH", oldDriver(t))
	refused("this one has no cuCheckpointProcessGetState, which came with driver 570\n", "--to", "2")
	directory := t.TempDir()
	library(t, filepath.Join(directory, "libcuda.so.1"), "int cuInit(unsigned f) { return (int)f; } "+
		"int cuGetErrorName(void) { return 0; } int cuGetErrorString(void) { return 0; } "+
		"int cuCheckpointProcessGetState(void) { return 0; } int cuDriverGetVersion(int *v) { *v = 12080; return 0; }")
	t.Setenv("LD_LIBRARY_PATH", directory)
	refused("on another GPU: that came with driver 580 (CUDA 13.0), and this one is for CUDA 12.8", "--to", "2")
	for arguments, words := range map[string]string{
		"1":                     "give either --to, or --map with the GPUs that change",
		"1 --to 1 --map 0=1":    "give either --to, or --map",
		"1 --from 1 --map 0=1":  "--from says what goes to --to",
		"1 --map 0=2,1":         `--map "1": give each GPU and where it goes`,
		"1 --map 0=2,=1":        `--map "=1": give each GPU and where it goes`,
		"--all --to 1":          "--all takes --from or --map: which GPU is to be emptied?",
		"--from 1 --to 2":       "name the processes by number, or give --all or --job (tms ps lists them)",
		"--all 1 --from 1 --to": "flag needs an argument",
	} {
		fails(t, exitUsage, words, append([]string{"move"}, strings.Fields(arguments)...)...)
	}
	fails(t, exitNoProcess, "there is no such process", "move", "999999999", "--to", "1")
}

func TestAPartOfAGPUIsNotMoved(t *testing.T) {
	m := startMobile(t, "CUDASIM_NAME=NVIDIA H200 MIG 1g.18gb")
	m.refused("GPU 0 is a part of a GPU (NVIDIA H200 MIG 1g.18gb), which the driver cannot checkpoint\n", "move",
		m.number(), "--to", "1")
	m.on(0)
}

func TestADryRunOfAMove(t *testing.T) {
	m := startMobile(t)
	second := m.start(t)
	second.do("own 20")
	require.Regexp(t, "^"+m.number()+`: would free 32\.00 MiB of GPU 0: 8\.00 MiB of cache, 24\.00 MiB of weights`+
		"\n"+m.number()+`: would move 72\.00 MiB from GPU 0 to GPU 1; 128\.00 MiB free`+"\n$",
		succeeds(t, "move", m.number(), "--to", "1", "--dry-run"))
	out, _, code := command(t, "move", "--all", "--from", "0", "--to", "1", "--dry-run", "--json")
	require.Zero(t, code)
	plans := parsed[[]group.Plan](t, out)
	require.Len(t, plans, 2)
	var free []uint64
	for _, p := range plans {
		require.True(t, p.Fits)
		require.Equal(t, "move", p.Op)
		require.Equal(t, []string{uuidOf(0), uuidOf(1)}, []string{p.Legs[0].From, p.Legs[0].To})
		free = append(free, p.Legs[0].Free>>20)
	}
	require.Contains(t, [][]uint64{{128, 56}, {128, 76}}, free)
	// Each fits there, but not both.
	succeeds(t, "move", second.number(), "--to", "2")
	third := m.start(t)
	succeeds(t, "move", third.number(), "--to", "1")
	m.start(t)
	arguments := []string{"move", "--all", "--from", "0", "--to", "1", "--dry-run"}
	require.Equal(t, 1, strings.Count(fails(t, exitNo, "MiB are needed there", arguments...), "GPU 1 has"))
	m.leaves([3]int{24, 96, 76})
}

// A device is emptied; what is on others stays.
func TestADeviceIsEmptied(t *testing.T) {
	m := startMobile(t)
	third := m.start(t)
	succeeds(t, "move", third.number(), "--to", "2")
	second := m.start(t)
	m.leaves([3]int{128 - 72 - 32, 128, 128 - 32})
	require.Contains(t, succeeds(t, "move", "--all", "--from", "0", "--to", "1", "--dry-run"),
		third.number()+": nothing to move\n")
	out := succeeds(t, "move", "--all", "--from", "0", "--to", "1")
	require.Contains(t, out, m.number()+": moved from GPU 0 to GPU 1")
	require.Contains(t, out, second.number()+": moved from GPU 0 to GPU 1")
	require.Contains(t, out, third.number()+": nothing to move: it does not use the GPU: it is on GPU 2")
	m.leaves([3]int{128, 128 - 72 - 32, 128 - 32})
	for _, s := range []*steered{m.steered, second, third} {
		s.do("check")
	}
	succeeds(t, "move", "--all", "--map", "1=0")
	m.leaves([3]int{128 - 72 - 32, 128, 128 - 32})
}

func TestAProgramOnTwoDevicesIsMoved(t *testing.T) {
	hermetic.Thorough(t)
	m := startMobile(t)
	m.do("device 1", "more 16", "device 0")
	m.leaves([3]int{56, 112, 128})
	m.refused("it uses GPU 0 and GPU 1: say by --map where each goes, or by --from which one goes to 2", "move",
		m.number(), "--to", "2")
	m.refused("it uses GPU 1, too: say by --map where that goes", "move", m.number(), "--map", "0=1")
	require.Contains(t, succeeds(t, "move", m.number(), "--map", "0=1,1=2"),
		"moved from GPU 0 to GPU 1, from GPU 1 to GPU 2 in ")
	m.leaves([3]int{128, 56, 112})
	succeeds(t, "move", m.number(), "--from", "1", "--to", "0") // the other stays
	m.leaves([3]int{56, 128, 112})
	succeeds(t, "move", m.number(), "--map", "0=2,2=0") // each has room only where the other was
	m.leaves([3]int{112, 128, 56})
	m.do("check")
	states := parsed[[]fleet.Process](t, succeeds(t, "ps", "--json"))
	require.Equal(t, []string{uuidOf(2), uuidOf(0)}, []string{states[0].Stats.Devices[0].UUID,
		states[0].Stats.Devices[1].UUID})
}

// stopped ends a program.
func stopped(t *testing.T, s *steered) {
	t.Helper()
	require.NoError(t, s.Process.Kill())
	_ = s.Wait()
}

// NCCL looks for its ways again if it was suspended. Otherwise only a communicator of one rank, without ways, is moved.
func TestCommunicatorsAreMovedSuspended(t *testing.T) {
	const words = " is not suspended, so NCCL would keep the ways between its old GPUs"
	for _, test := range []struct{ name, version, make, environment, says, refuses string }{
		{"suspended", ncclNew, "all 2", "", "; NCCL 2.29.7: 2 communicators with 8.00 MiB suspended\n", ""},
		{"alone", ncclOld, "all 1", "", "NCCL 2.27.5: 1 communicator left to the driver (this version has no", ""},
		{"no function", ncclOld, "all 2", "", "", "a communicator of NCCL 2.27.5 with 2 ranks" + words +
			": this version has no ncclCommSuspend, which came with 2.29.7\n"},
		{"ranks elsewhere", ncclNew, "ranks 1 2", "", "", "a communicator of NCCL 2.29.7 with 2 ranks" + words +
			": ncclCommSuspend waits for all ranks, and some are in other processes\n"},
		{"a failure", ncclNew, "all 2", "FAKE_NCCL=fail", "",
			words + ": ncclCommSuspend has failed; it goes on as before\n"},
		{"inside", ncclNew, "inside 20000", "", "", words + "; it goes on as before\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CUDASIM_DEVICES", "2")
			c := startNCCL(t, "linked", test.version, test.environment)
			t.Setenv("CUDASIM_SHARED", filepath.Base(os.Getenv("TMPDIR")))
			t.Setenv("CUDASIM_MEMORY", "128M")
			if strings.HasPrefix(test.make, "inside") {
				c.do("all 2")
			}
			c.do(test.make)
			before := c.other.count("free")
			if test.refuses != "" {
				c.refused(test.refuses, "move", c.number(), "--to", "1")
				c.requireFree(before)
			} else {
				require.Contains(t, succeeds(t, "move", c.number(), "--to", "1"), test.says)
				c.requireFree(128)
				c.do("reduce")
			}
			c.do("check")
		})
	}
}

// Commands that move a process at the same time disturb one another, but the process goes on, all of it in one place.
func TestMovesAtTheSameTime(t *testing.T) {
	hermetic.Thorough(t)
	m := startMobile(t)
	m.do("work")
	for range hermetic.Often(30, 8) {
		var all sync.WaitGroup
		for _, arguments := range [][]string{{"move", m.number(), "--to", "1"}, {"move", m.number(), "--to", "2"},
			{"resume", m.number()}} {
			all.Go(func() { _, _, _ = once(t, arguments...) })
		}
		all.Wait()
		succeeds(t, "resume", m.number())
		m.advances("cycles")
		require.Eventually(t, func() bool {
			free := m.free()
			return slices.Equal([]int{56 - 4, 128, 128}, slices.Sorted(slices.Values(free[:])))
		}, time.Minute, 10*time.Millisecond)
	}
	m.do("calm", "check")
}
