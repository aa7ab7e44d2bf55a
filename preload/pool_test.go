package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/report/trace"
	"tms/vmm/pool/kinds"
)

// small has the options with which a kind needs little memory.
var small = map[string]string{
	"freelist": "buffer=64MiB",
	"buddy":    "capacity=64MiB",
	"slab":     "capacity=64MiB",
	"paddle":   "max_chunk=64MiB",
}

// ofKinds returns the arguments of a program for each kind.
func ofKinds(more ...string) (rows [][]string) {
	for _, kind := range kinds.Names() {
		rows = append(rows, append([]string{kind, small[kind]}, more...))
	}
	return rows
}

func TestPool(t *testing.T) {
	for _, cudart := range eachMajor() {
		each(t, compile(t, "pool", cudart), ofKinds(), "CUDASIM_DEVICES=2")
	}
}

// libc10 builds a stand-in for PyTorch's library.
func libc10(t *testing.T, flags ...string) string {
	t.Helper()
	library := filepath.Join(t.TempDir(), "libc10.so")
	output, err := exec.Command(hermetic.Program(t, "c++"), append(flags, "-shared", "-fPIC", "-Wl,-soname,libc10.so",
		"-o", library, filepath.Join("testdata", "libc10.cc"))...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return library
}

func TestPyTorchThatCannotBeTold(t *testing.T) {
	hermetic.Thorough(t)
	program := compile(t, "torchpool", majors[1])
	run(t, program, []string{"silent", libc10(t, "-DWITHOUT_THROW")}).succeeded(t)
	run(t, program, []string{"throws", libc10(t)}).succeeded(t)
	o := run(t, program, []string{"none"}).succeeded(t)
	require.Contains(t, o.stderr, "tms: CUDA out of memory. ")
	require.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
}

func TestPoolOfPyTorch(t *testing.T) {
	libc10 := libc10(t)
	program := compile(t, "torchpool", majors[1])
	for _, arguments := range ofKinds(libc10) {
		t.Run(arguments[0], func(t *testing.T) {
			t.Parallel()
			o := run(t, program, arguments).succeeded(t)
			lines := strings.Split(strings.TrimSpace(o.stderr), "\n")
			require.Len(t, lines, 4, o.stderr)
			require.Contains(t, lines[0], "out of memory")
			require.Contains(t, lines[1], "0x1234: not the start")
			require.Contains(t, lines[2], "tms_torch_pool_end_allocate_to_pool: ")
			require.Contains(t, lines[3], "tms_torch_pool_memory_fraction: ")
		})
	}
}

// traced returns the allocations of a recording as the programs print them, and checks that it can be replayed.
func traced(t *testing.T, path string) []string {
	t.Helper()
	_, err := trace.ReadFile(path)
	require.NoError(t, err)
	records, file, err := trace.OpenRecords(path)
	require.NoError(t, err)
	defer file.Close()
	live, rows := trace.NewLive(), []string{}
	row := func(action string, b trace.Record, stream uint64) {
		rows = append(rows, fmt.Sprintf("%s,%#x,%d,%#x", action, b.Address, b.Size, stream))
	}
	for {
		record, more, err := records.Next()
		require.NoError(t, err)
		switch {
		case !more:
			return rows
		case record.Kind == trace.Refused:
			row("allocate failure", record, record.Stream)
		case record.Flags&trace.FlagMapped == 0:
			live.Apply(record, func(b trace.Record) { row("allocate", b, b.Stream) },
				func(b trace.Record, stream uint64) { row("free", b, stream) })
		}
	}
}

func TestTraceOfEveryCall(t *testing.T) {
	for _, cudart := range majors {
		path := filepath.Join(t.TempDir(), "trace.csv")
		require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("what was there before\n", 1000)), 0o600))
		o := run(t, compile(t, "trace", cudart), []string{"calls"}, "TMS_TRACE="+path).succeeded(t)
		require.Equal(t, strings.Split(strings.TrimSpace(o.stdout), "\n"), traced(t, path))
	}
}

func TestTraceOfThreadsIsInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.csv")
	run(t, compile(t, "trace", majors[1]), []string{"threads"}, "TMS_TRACE="+path).succeeded(t)
	live := map[string]string{}
	rows := traced(t, path)
	require.Len(t, rows, 4*2*2000)
	for _, row := range rows {
		action, block, _ := strings.Cut(row, ",")
		address, size, _ := strings.Cut(block, ",")
		if action == "free" {
			require.Equal(t, live[address], size, row)
			delete(live, address)
			continue
		}
		require.NotContains(t, live, address, row)
		live[address] = size
	}
	require.Empty(t, live)
}

func TestTraceOfForkedProcesses(t *testing.T) {
	program := compile(t, "trace", majors[1])
	dir := t.TempDir()
	own := filepath.Join(dir, "%p.csv")
	o := run(t, program, []string{"fork"}, "TMS_TRACE="+own).succeeded(t)
	child := filepath.Join(dir, strings.TrimSpace(o.stderr)+".csv")
	require.Equal(t, []string{"allocate failure,0x0,100,0x0"}, traced(t, child))
	files, err := filepath.Glob(filepath.Join(dir, "*.csv"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, file := range files {
		if file != child {
			require.Equal(t, strings.Split(strings.TrimSpace(o.stdout), "\n"), traced(t, file))
		}
	}

	shared := filepath.Join(dir, "shared")
	o = run(t, program, []string{"fork"}, "TMS_TRACE="+shared).succeeded(t)
	require.Equal(t, strings.Split(strings.TrimSpace(o.stdout), "\n"), traced(t, shared))
}

func TestTraceThatCannotBeWritten(t *testing.T) {
	program := compile(t, "trace", majors[1])
	for path, why := range map[string]string{
		filepath.Join(t.TempDir(), "missing", "trace.csv"): "No such file or directory",
		"/dev/full": "it is no plain file",
	} {
		o := run(t, program, []string{"calls"}, "TMS_TRACE="+path).succeeded(t)
		require.Regexp(t, `^tms: the recording to `+path+`: .*: `+why+`; nothing is recorded\n$`, o.stderr)
	}
}

// A process that allocates nothing makes no file, and recording does not wake Go.
func TestTraceOfProcessesThatDoNotAllocate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.csv")
	run(t, "/bin/sh", []string{"-c", "true; /bin/true"}, "TMS_TRACE="+path).succeeded(t)
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	run(t, compile(t, "asleep", majors[1]), nil, "TMS_TRACE="+path).succeeded(t)
}

func TestPoolUnderAProgramThatKnowsNone(t *testing.T) {
	program := compileWithDriver(t, "unaware", majors[1])
	tried := kinds.Names()
	if hermetic.Quick {
		tried = []string{"caching", "slab"} // TestPool has all kinds
	}
	for _, kind := range tried {
		setting := "TMS_INIT_POOL=" + strings.TrimSuffix(kind+":"+small[kind], ":")
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			o := run(t, program, []string{kind}, "TMS_INIT_ENABLE=1", "TMS_INIT_ENABLE_CPU_BACKUP=1",
				setting).succeeded(t)
			require.Empty(t, o.stderr)
		})
	}
	for setting, words := range map[string]string{
		"heap":       `no kind of pool is named "heap"`,
		"caching:x=": "TMS_INIT_POOL=caching:x= is not understood",
	} {
		o := run(t, compile(t, "edges", majors[1]), nil, "TMS_INIT_POOL="+setting).succeeded(t)
		require.Contains(t, o.stderr, words)
	}
}
