package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
)

// Processes with NVML, for the time of a snapshot (held.c, listener.c). testdata/held.c does what a test says.

// startHeld starts a host, and returns the file that its NVML has open while it is begun.
func startHeld(t *testing.T, environment ...string) (h *steered, file string) {
	t.Helper()
	sockets(t)
	file = filepath.Join(t.TempDir(), "nvml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	program := compile(t, "held", majors[1], "-rdynamic", "-l:libcuda.so.1")
	return steer(t, []string{program}, append(environment, "TMS_CONTROL=1", reaching(t), "CUDASIM_DEVICES=2",
		fmt.Sprint("CUDASIM_SHARED=held-", os.Getpid()), "CUDASIM_NVML_FILE="+file)...), file
}

// begun starts a host that has begun NVML and listens.
func begun(t *testing.T, environment ...string) (h *steered, file string) {
	t.Helper()
	h, file = startHeld(t, environment...)
	require.Equal(t, "ok", h.do("begin"))
	require.Equal(t, "ok", h.do("allocate"))
	h.listens()
	return h, file
}

func (h *steered) opens(file string) bool {
	h.t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.pid()))
	require.NoError(h.t, err)
	for _, link := range links {
		if to, _ := os.Readlink(link); to == file {
			return true
		}
	}
	return false
}

var snapshotPause = control.SteerRequest{Op: control.Pause, To: control.ToMemory, SaveAll: true}

// A thread that opens a library waits at the closed gate with the loader's lock. A snapshot's pause returns, and so does
// its end, whether the program uses NVML or not.
func TestASnapshotWhileALibraryIsOpened(t *testing.T) {
	for _, start := range []func(*testing.T, ...string) (*steered, string){startHeld, begun} {
		h, file := start(t)
		require.Equal(t, "ok", h.do("allocate"))
		h.listens()
		client := h.dial()
		has := h.opens(file)
		hold := snapshotPause
		hold.Hold = true
		well(t, client, hold)
		require.Equal(t, "ok", h.do("open "+shared(t, "constructor")))
		well(t, client, snapshotPause)
		require.False(t, h.opens(file))
		require.Equal(t, "ok", h.do("waits"))
		well(t, client, control.SteerRequest{Op: control.Undo})
		require.Equal(t, has, h.opens(file))
		require.Equal(t, "ok", h.do("opened"))
	}
}

// NVML needs the loader's lock to end, and a thread waits at the gate with it: the snapshot is refused, NVML ends and begins
// once the thread goes on, and the next snapshot is right.
func TestNVMLThatCannotEndInTime(t *testing.T) {
	h, file := begun(t, "CUDASIM_NVML_LOADER=nvmlShutdown")
	client := h.dial()
	pause := snapshotPause
	pause.Timeout = new(1.0)
	hold := pause
	hold.Hold = true
	well(t, client, hold)
	require.Equal(t, "ok", h.do("open "+shared(t, "constructor")))
	reply, err := client.Do(t.Context(), pause)
	require.NoError(t, err)
	require.Contains(t, reply.Error, "nvmlShutdown has not returned")
	reply, err = client.Do(t.Context(), pause)
	require.NoError(t, err)
	require.Contains(t, reply.Error, "NVML is still being ended")
	require.Equal(t, "ok", h.do("waits"))
	well(t, client, control.SteerRequest{Op: control.Undo})
	require.Equal(t, "ok", h.do("opened"))
	require.Equal(t, "ok", h.do("holds"))
	require.True(t, h.opens(file))
	until(t, func() bool {
		reply, err = client.Do(t.Context(), pause)
		require.NoError(t, err)
		return reply.Error == ""
	})
	require.False(t, h.opens(file))
	well(t, client, control.SteerRequest{Op: control.Undo})
	require.Equal(t, "ok", h.do("holds"))
}

// The thread with the loader's lock calls NVML, which cannot end without that lock: the call goes on after a while, NVML
// ends and begins, and the next snapshot is right.
func TestACallThatNVMLNeedsToEnd(t *testing.T) {
	h, file := begun(t, "CUDASIM_NVML_LOADER=nvmlShutdown")
	client := h.dial()
	pause := snapshotPause
	pause.Timeout = new(1.0)
	hold := pause
	hold.Hold = true
	well(t, client, hold)
	require.Equal(t, "ok", h.do("both "+shared(t, "constructor")))
	reply, err := client.Do(t.Context(), pause)
	require.NoError(t, err)
	require.Contains(t, reply.Error, "nvmlShutdown has not returned")
	well(t, client, control.SteerRequest{Op: control.Undo})
	require.Equal(t, "ok", h.do("waits"))
	require.Equal(t, "ok", h.do("left"))
	require.Equal(t, "ok", h.do("opened"))
	until(t, func() bool {
		reply, err = client.Do(t.Context(), pause)
		require.NoError(t, err)
		return reply.Error == ""
	})
	require.False(t, h.opens(file))
	require.Equal(t, "ok", h.do("child"))
	well(t, client, control.SteerRequest{Op: control.Undo})
	require.Equal(t, "ok", h.do("holds"))
}

// The time of calls in progress does not count for the end of NVML.
func TestACallAndNVMLTakeLong(t *testing.T) {
	h, file := begun(t, "CUDASIM_NVML_SLOW=3000")
	client := h.dial()
	require.Equal(t, "ok", h.do("event 4"))
	pause := snapshotPause
	pause.Timeout = new(1.0)
	well(t, client, pause)
	require.Equal(t, "ok", h.do("returned"))
	require.False(t, h.opens(file))
	well(t, client, control.SteerRequest{Op: control.Undo})
	require.Equal(t, "ok", h.do("holds"))
}

// NVML needs the loader's lock to begin again, and a thread that calls it waits with that lock: the thread goes on, and so
// does the snapshot. A child that is forked then begins NVML itself.
func TestNVMLThatCannotBeginInTime(t *testing.T) {
	h, file := begun(t, "CUDASIM_NVML_LOADER=nvmlInit")
	client := h.dial()
	well(t, client, snapshotPause)
	require.False(t, h.opens(file))
	require.Equal(t, "ok", h.do("ask "+shared(t, "constructor")))
	require.Equal(t, "ok", h.do("waits"))
	require.Equal(t, "ok", h.do("stay"))
	well(t, client, control.SteerRequest{Op: control.Undo})
	require.Equal(t, "ok", h.do("left"))
	require.Equal(t, "ok", h.do("child"))
	require.Equal(t, "ok", h.do("leave"))
	require.Equal(t, "ok", h.do("opened"))
	until(t, func() bool { return h.opens(file) })
	require.Equal(t, "ok", h.do("holds"))
}

// NVML is begun again when the client that has ended it ends its pause, and not when another client does.
func TestNVMLEndsForOneClient(t *testing.T) {
	h, file := begun(t, "CUDASIM_NVML_TURNS=1")
	first, other := h.dial(), h.dial()
	well(t, first, snapshotPause)
	require.False(t, h.opens(file))
	well(t, other, control.SteerRequest{Op: control.Undo})
	require.False(t, h.opens(file))
	well(t, first, control.SteerRequest{Op: control.Undo})
	require.True(t, h.opens(file))
	require.Equal(t, "ok", h.do("holds"))
	well(t, first, snapshotPause)
	require.False(t, h.opens(file))
	well(t, other, control.SteerRequest{Op: control.Resume})
	require.True(t, h.opens(file))
	require.Equal(t, "ok", h.do("holds"))
}

// A program that ends NVML and begins it itself has other handles from then on, in later snapshots too.
func TestAProgramBeginsNVMLAgain(t *testing.T) {
	for _, turns := range []string{"1", "apart"} {
		h, _ := begun(t, "CUDASIM_NVML_TURNS="+turns)
		client := h.dial()
		for range 3 {
			well(t, client, snapshotPause)
			well(t, client, control.SteerRequest{Op: control.Undo})
			require.Equal(t, "ok", h.do("holds"))
			require.Equal(t, "ok", h.do("again"))
			require.Equal(t, "ok", h.do("holds"))
		}
	}
}

// A thread forks while a snapshot ends NVML, which has its own lock then. Two threads of the child use NVML at once.
func TestAForkWhileNVMLIsEnded(t *testing.T) {
	h, file := begun(t, "CUDASIM_NVML_TURNS=1", "CUDASIM_NVML_SLOW=300")
	require.Equal(t, "ok", h.do("fork"))
	client := h.dial()
	well(t, client, snapshotPause)
	require.False(t, h.opens(file))
	require.Equal(t, "ok", h.do("reap"))
	well(t, client, control.SteerRequest{Op: control.Undo})
	require.Equal(t, "ok", h.do("holds"))
}

// A process with one thread gets no other from the library, so it may do what only such a process may.
func TestAProcessWithOneThreadStaysSo(t *testing.T) {
	hermetic.Namespaces(t, "--user")
	h, _ := startHeld(t)
	require.Equal(t, "ok", h.do("begin"))
	require.Equal(t, "ok", h.do("holds"))
	require.Equal(t, "ok", h.do("alone"))
	require.False(t, client.CanWake(h.pid()))
}

// A start that fails leaves the listener there for the next client. Its word stays mapped when it has ended.
func TestAListener(t *testing.T) {
	hermetic.MapFiles(t)
	h, _ := startHeld(t)
	require.Equal(t, "ok", h.do("thread"))
	require.Equal(t, "ok", h.do("begin"))
	require.Equal(t, "yes", h.do("listener"))
	if !sanitized { // which has no limit of addresses
		require.Equal(t, "ok", h.do("small"))
		_, err := client.DialOrWake(h.pid())
		require.ErrorIs(t, err, client.ErrUnreachable)
		require.Equal(t, "yes", h.do("listener"))
		require.Equal(t, "ok", h.do("large"))
	}
	connection, err := client.DialOrWake(h.pid())
	require.NoError(t, err)
	connection.Close()
	until(t, func() bool { return h.do("listener") == "no" })
	require.True(t, client.CanWake(h.pid()))

	h, _ = startHeld(t)
	require.Equal(t, "ok", h.do("thread"))
	require.Equal(t, "ok", h.do("begin"))
	require.Equal(t, "yes", h.do("listener"))
	require.Equal(t, "ok", h.do("write"))
	h.listens()
}
