package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

type compatibilityLine struct {
	function        string
	majors          []string
	outside, inside string // up to the first ; , or :
}

// compatibilityTable reads the table of docs/compatibility.md.
func compatibilityTable(t *testing.T) []compatibilityLine {
	t.Helper()
	text := read(t, "../docs/compatibility.md")
	var lines []compatibilityLine
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| cu") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		require.Len(t, cells, 4, line)
		short := func(cell string) string { return strings.TrimSpace(regexp.MustCompile("[;,:]").Split(cell, 2)[0]) }
		lines = append(lines,
			compatibilityLine{cells[0], strings.Split(cells[1], ", "), short(cells[2]), short(cells[3])})
	}
	return lines
}

func TestCompatibilityTable(t *testing.T) {
	interposed := exported(t)
	programs := map[string]string{"12": compile(t, "compatibility", majors[0]),
		"13": compile(t, "compatibility", majors[1])}
	lines := compatibilityTable(t)
	listed := map[string]bool{}
	for _, line := range lines {
		require.False(t, listed[line.function], "%s stands twice", line.function)
		listed[line.function] = true
		if line.outside == "CUDA's own" {
			require.Equal(t, line.outside, line.inside)
			require.False(t, slices.Contains(interposed, line.function), line.function)
			continue
		}
		require.Contains(t, interposed, line.function)
		if line.outside == "noted" { // see everything_test.go of cmd/tms
			require.Equal(t, line.outside, line.inside)
			continue
		}
		for _, major := range line.majors {
			if sanitized && !hermetic.Full && major != "13" {
				continue
			}
			t.Run(line.function+" "+major, func(t *testing.T) {
				t.Parallel()
				for where, want := range map[string]string{"out": line.outside, "in": line.inside} {
					o := run(t, programs[major], []string{line.function, where}).succeeded(t)
					// "frees" in the table may go on: "frees once the stream ..."
					said := strings.TrimSpace(o.stdout)
					require.True(t, strings.HasPrefix(want, said), "%s: %s, not %s", where, said, want)
				}
			})
		}
	}
	// The table lists the interposed functions; the text below it lists those that do not allocate.
	below := regexp.MustCompile("[Cc]apture|StreamDestroy|SetDevice|Ctx(Create|Destroy|Release)|PeerAccess|" +
		"EntryPoint|ProcAddress|MemGetInfo|TotalMem|DeviceProperties|MemPool(Create|SetAttribute|GetAttribute|TrimTo)|LastError|" +
		"Mem(cpy|set)|Graph(Add|Exec)?Node(SetParams)?|^cuInit$")
	for _, name := range interposed {
		if strings.HasPrefix(name, "cu") && !below.MatchString(name) {
			require.True(t, listed[name], "%s is interposed and not in docs/compatibility.md", name)
		}
	}
	require.Greater(t, len(lines), 50)
}
