package calls

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

func TestEveryFunctionHasAClass(t *testing.T) {
	functions, err := Load()
	require.NoError(t, err)
	for header, least := range map[string]int{"cuda.h": 680, "cuda_runtime_api.h": 440, "cuda_profiler_api.h": 2,
		"cudaProfiler.h": 3, "nvml.h": 410} {
		count := 0
		for _, f := range functions {
			if f.Header == header {
				count++
			}
		}
		require.GreaterOrEqual(t, count, least, header)
	}
	for _, version := range []string{"12.0", "12.4", "12.9", "13.0", "13.1"} {
		require.Contains(t, functionsText[:strings.Index(functionsText, "[")], version)
	}
}

func TestFunctionWithoutAClass(t *testing.T) {
	functions, classes := functionsText+"cuMemTeleport 14000 14.0-14.0 (CUdeviceptr)\n", classesText
	_, err := load(functions, classes)
	require.ErrorContains(t, err, "cuMemTeleport (of nvml.h 14.0) has no class")
	_, err = load(functions, classes+"\n[submits] moves memory\ncuMemTeleport\n[harmless] none\ncuMemTeleport\n")
	require.ErrorContains(t, err, "cuMemTeleport is harmless, and submits, harmless")
	_, err = load(functions, classes+"\n[submits] moves memory\ncuMemTeleport cuMemTeleports\n")
	require.ErrorContains(t, err, "class submits: no function is named cuMemTeleports")
	_, err = load(functions, classes+"\n[submits]\ncuMemTeleport\n")
	require.ErrorContains(t, err, "class submits has no reason")
	_, err = load(functions, classes+"\n[submits] moves memory\ncuMemTeleport\n")
	require.NoError(t, err)
}

// The libraries are built from tables that agree with the lists.
func TestTablesAreCurrent(t *testing.T) {
	functions, err := Load()
	require.NoError(t, err)
	root, err := hermetic.Root()
	require.NoError(t, err)
	for _, file := range Tables(functions) {
		kept, err := os.ReadFile(filepath.Join(root, file.Path))
		require.NoError(t, err)
		require.Equal(t, file.Text, string(kept), "run go generate ./forward/calls")
	}
}

// Functions of one name do the same to memory, whatever their version.
func TestGateHoldsEachVersion(t *testing.T) {
	functions, err := Load()
	require.NoError(t, err)
	table := map[string]bool{}
	for _, r := range gated(functions) {
		table[r.of.Symbol] = true
	}
	for _, f := range functions {
		if !ofDriver(f) || !f.Is("submits", "launches", "names", "captures", "polls", "takes", "lends") {
			continue
		}
		require.Contains(t, table, f.Symbol)
		require.NotZero(t, f.Since, f.Symbol)
		require.False(t, slices.Contains(f.Types, "CUipcMemHandle"), "%s: a handle is no word", f.Symbol)
		require.LessOrEqual(t, len(f.Types), 11, "%s: words.h has no more", f.Symbol)
	}
}

// forward.h has the types in C of what libtms.so stands in front of; the rest of what it says is as in the headers.
func TestForwardedFunctions(t *testing.T) {
	functions, err := Load()
	require.NoError(t, err)
	bySymbol := map[string]Function{}
	for _, f := range functions {
		bySymbol[f.Symbol] = f
	}
	root, err := hermetic.Root()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "forward", "forward.h"))
	require.NoError(t, err)
	rows := forwardRows(string(text))
	require.Greater(t, len(rows), 60)
	for _, row := range rows {
		f, ok := bySymbol[row.symbol]
		require.True(t, ok, "%s is declared by no header", row.symbol)
		require.Equal(t, len(f.Types), row.parameters, row.symbol)
		if row.since != 0 {
			require.Equal(t, f.Since, row.since, row.symbol)
		}
	}
	// libtms.so does with each function what its class says.
	exports, err := os.ReadFile(filepath.Join(root, "preload", "testdata", "exports.txt"))
	require.NoError(t, err)
	exported := strings.Fields(string(exports))
	for _, f := range functions {
		ours := f.Is("captures", "ends", "lends", "obstructs", "shares", "asks", "tells", "lists", "maps", "frees", "pausable", "pools",
			"contexts", "errors", "finds", "begins")
		if _, copies := addressesOf(f); copies {
			ours = true
		}
		if slices.Contains(exported, f.Symbol) {
			require.True(t, ours, "libtms.so exports %s, and classes.txt says of it: %v", f.Symbol, f.Classes)
		} else if ours {
			require.False(t, isNewest(f, functions), "%s is for libtms.so to know", f.Symbol)
		}
	}
}

type forwardRow struct {
	symbol            string
	since, parameters int
}

func forwardRows(text string) []forwardRow {
	var rows []forwardRow
	row := regexp.MustCompile(`\t[XN]\((?:(\d+), )?(cu\w+)(##suffix)?, (\d+)`)
	for _, found := range row.FindAllStringSubmatch(text, -1) {
		since, _ := strconv.Atoi(found[1])
		parameters, _ := strconv.Atoi(found[4])
		rows = append(rows, forwardRow{found[2], since, parameters})
	}
	return rows
}

// isNewest reports whether no later version of the function has replaced it.
func isNewest(f Function, functions []Function) bool {
	own := suffix.FindStringSubmatch(f.Symbol)
	return !slices.ContainsFunc(functions, func(other Function) bool {
		theirs := suffix.FindStringSubmatch(other.Symbol)
		return other.Name == f.Name && theirs[2] == own[2] && theirs[1] > own[1]
	})
}
