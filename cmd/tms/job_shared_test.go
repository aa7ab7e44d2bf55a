package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// Ranks that have each other's memory open are paused together, or not at all; a pause of one alone is refused, and
// names it.
func TestJobThatSharesMemory(t *testing.T) {
	hermetic.Thorough(t)
	ownSockets(t)
	// The spoiled unmapping is that of its own memory, after others'.
	ranks := startJob(t, 3, "CUDASIM_FAIL=cuMemUnmap:2:999", "MASTER_ADDR=here", "MASTER_PORT=29501",
		"COLLECTIVE_SHARES=1")
	pause := []string{"pause", "--job", "here:29501", "--timeout", "60"}
	require.Regexp(t, "(?m)^tms: "+ranks[1].number()+": .*999", fails(t, exitNo, "", pause...))
	require.True(t, ranks.hold(rankBytes))
	for range hermetic.Often(3, 1) {
		succeeds(t, pause...)
		require.True(t, ranks.hold(0))
		succeeds(t, "resume", "--job", "here:29501")
		require.True(t, ranks.hold(rankBytes))
	}

	// The driver takes all the rest: then nothing is shared any longer.
	succeeds(t, append(pause, "--everything")...)
	succeeds(t, "resume", "--job", "here:29501")
	require.True(t, ranks.hold(rankBytes))

	ranks.areCut("here:29501", hermetic.Often(8, 2), 30*time.Millisecond)
	ranks.end()
}

// Memory of a process that has ended does not come back: the importer's resume still ends, says what is lost, and lets
// the program's threads go on.
func TestImportedMemoryIsLost(t *testing.T) {
	ownSockets(t)
	start := func() *steered {
		c := exec.Command(tms, "run", "--", steeredProgram(t))
		c.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "LD_LIBRARY_PATH="+built(t, "sim"),
			"CUDASIM_MEMORY=256M", "CUDASIM_SHARED="+filepath.Base(os.Getenv("TMPDIR")))
		return startProgram(t, c)
	}
	exporter, importer := start(), start()
	exporter.do("own 2")
	handle := exporter.do("export")
	importer.do("allocate", "serve") // it listens before it is paused
	require.Equal(t, "0 ", importer.do("borrow "+handle))
	require.Equal(t, "0 7", importer.do("read"))
	importer.do("work")
	succeeds(t, "pause", importer.number())
	exporter.end()

	require.Regexp(t, "^tms: "+importer.number()+": resume: memory of process "+exporter.number()+
		" at 0x[0-9a-f]+: the process has ended: .*; close it \\(cudaIpcCloseMemHandle\\)\n$",
		fails(t, exitNo, "", "resume", importer.number()))
	require.False(t, heldUp(t, importer))
	importer.goesOn()
	require.Equal(t, "ok", importer.do("check"))

	lost := func() bool {
		table, objects := succeeds(t, "ps"), succeeds(t, "ps", "--json")
		said := strings.Contains(table,
			importer.number()+": lost 2.00 MiB of other processes, which have ended or freed it: default\n")
		require.Equal(t, said, strings.Contains(objects, fmt.Sprintf(`"imported_lost_bytes":%d`, 2<<20)),
			"%s\n%s", table, objects)
		return said
	}
	require.True(t, lost())
	// The loss has been reported. The next use fails, until the program closes the memory.
	succeeds(t, "pause", importer.number())
	succeeds(t, "resume", importer.number())
	require.Regexp(t, "^400 .*was process "+exporter.number()+"'s and is lost; close it", importer.do("borrow "+handle))
	require.NotRegexp(t, "^0 ", importer.do("read"))
	importer.do("return")
	require.False(t, lost())
	importer.do("calm")
}
