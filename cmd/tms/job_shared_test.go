package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/hermetic"
)

// Ranks that have each other's memory open are paused together, or not at all; a pause of one alone is refused, and
// names it.
func TestJobThatSharesMemory(t *testing.T) {
	ownSockets(t)
	const count = 3
	ranks := startJob(t, count, func(rank int) []string {
		environment := []string{"MASTER_ADDR=here", "MASTER_PORT=29501", "COLLECTIVE_SHARES=1"}
		if rank == 1 { // its second unmapping is refused: that of its own memory, after others'
			environment = append(environment, "CUDASIM_FAIL=cuMemUnmap:2:999")
		}
		return environment
	})
	_, words, code := command(t, "pause", "--job", "here:29501", "--timeout", "60")
	require.Equal(t, exitNo, code)
	require.Regexp(t, "(?m)^tms: "+ranks[1].number()+": .*999", words)
	require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))
	for range hermetic.Often(3, 1) {
		_, words, code = command(t, "pause", "--job", "here:29501", "--timeout", "60")
		require.Zero(t, code, words)
		require.Equal(t, repeated(0, count), jobHeld(t, ranks))
		_, words, code = command(t, "resume", "--job", "here:29501")
		require.Zero(t, code, words)
		require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))
	}

	// The driver takes all the rest: then nothing is shared any longer.
	_, words, code = command(t, "pause", "--job", "here:29501", "--everything", "--timeout", "60")
	require.Zero(t, code, words)
	_, words, code = command(t, "resume", "--job", "here:29501")
	require.Zero(t, code, words)
	require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))

	// The command is killed at any moment.
	for i := range hermetic.Often(8, 2) {
		pausing := exec.Command(tms, "pause", "--job", "here:29501", "--timeout", "60")
		require.NoError(t, pausing.Start())
		time.Sleep(time.Duration(i) * 30 * time.Millisecond)
		kill := i%2 == 0
		require.NoError(t, pausing.Process.Signal([]os.Signal{syscall.SIGKILL, os.Interrupt}[i%2]))
		if pausing.Wait() == nil || kill && wasKept(t, ranks) {
			_, words, code := command(t, "resume", "--job", "here:29501")
			require.Zero(t, code, words)
		}
		require.Eventually(t, func() bool {
			return fmt.Sprint(jobHeld(t, ranks)) == fmt.Sprint(repeated(rankBytes, count))
		}, time.Minute, time.Millisecond)
	}

	last := ranks[0].do("stop")
	for _, r := range ranks[1:] {
		require.Equal(t, last, r.line())
	}
}

// Memory of a process that has ended does not come back: the importer's resume still ends, says what is lost, and lets
// the program's threads go on.
func TestImportedMemoryIsLost(t *testing.T) {
	ownSockets(t)
	start := func() *steered {
		command := exec.Command(tms, "run", "--", steeredProgram(t))
		command.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "LD_LIBRARY_PATH="+built(t, "sim"),
			"CUDASIM_MEMORY=256M", "CUDASIM_SHARED="+filepath.Base(os.Getenv("TMPDIR")))
		return startProgram(t, command)
	}
	exporter, importer := start(), start()
	exporter.do("own 2")
	handle := exporter.do("export")
	importer.do("allocate")
	require.Equal(t, "0 ", importer.do("borrow "+handle))
	require.Equal(t, "0 7", importer.do("read"))
	importer.do("work")
	_, words, code := command(t, "pause", importer.number())
	require.Zero(t, code, words)
	require.NoError(t, exporter.Process.Kill())
	_ = exporter.Wait()

	_, words, code = command(t, "resume", importer.number())
	require.Equal(t, exitNo, code)
	require.Regexp(t, fmt.Sprint("^tms: ", importer.number(), ": resume: memory of process ", exporter.number(),
		" at 0x[0-9a-f]+: the process has ended: .*; close it \\(cudaIpcCloseMemHandle\\)\n$"), words)
	require.False(t, heldUp(t, importer))
	importer.goesOn()
	require.Equal(t, "ok", importer.do("check"))

	lost := func() bool {
		table, _, code := command(t, "ps")
		require.Zero(t, code)
		objects, _, code := command(t, "ps", "--json")
		require.Zero(t, code)
		said := strings.Contains(table, importer.number()+": lost 2.00 MiB of other processes, which have ended or freed it: default\n")
		require.Equal(t, said, strings.Contains(objects, fmt.Sprintf(`"imported_lost_bytes":%d`, 2<<20)), "%s\n%s", table, objects)
		return said
	}
	require.True(t, lost())
	// The loss has been reported. The next use fails, until the program closes the memory.
	_, words, code = command(t, "pause", importer.number())
	require.Zero(t, code, words)
	_, words, code = command(t, "resume", importer.number())
	require.Zero(t, code, words)
	require.Regexp(t, "^400 .*was process "+exporter.number()+"'s and is lost; close it", importer.do("borrow "+handle))
	require.NotRegexp(t, "^0 ", importer.do("read"))
	importer.do("return")
	require.False(t, lost())
	importer.do("calm")
}
