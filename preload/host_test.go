package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// The tests enter as a user's process does: C programs from testdata, compiled here, with build/lib/libtms.so preloaded
// over the simulator (or those of another build: sanitized_test.go).

func built(t *testing.T, path ...string) string {
	t.Helper()
	folder := cmp.Or(os.Getenv(buildVariable), "build")
	full, err := filepath.Abs(filepath.Join(append([]string{"..", folder}, path...)...))
	require.NoError(t, err)
	_, err = os.Stat(full)
	require.NoError(t, err, "run scripts/build.sh first (--sanitized for build/sanitized)")
	return full
}

// compile builds testdata/NAME.c against a major version of the simulated libcudart, or none.
func compile(t *testing.T, name, cudart string, more ...string) string {
	t.Helper()
	arguments := []string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
		filepath.Join("testdata", name+".c"), "-Wl,-z,dynamic-undefined-weak", "-L" + built(t, "sim")}
	arguments = append(arguments, sanitizerFlags()...)
	if cudart != "" {
		arguments = append(arguments, "-l:"+cudart)
	}
	return hermetic.Compile(t, name, append(append(arguments, more...), "-ldl")...)
}

// compileWithDriver is compile for a program that is also linked with the driver.
func compileWithDriver(t *testing.T, name, cudart string) string {
	t.Helper()
	return compile(t, name, cudart, "-l:libcuda.so.1")
}

type outcome struct {
	arguments      []string
	stdout, stderr string
	state          *os.ProcessState
	findings       []string // the sanitizers' reports
}

// run starts a program with the library preloaded; environment entries are added to the test's own.
func run(t *testing.T, program string, arguments []string, environment ...string) outcome {
	t.Helper()
	o := runAnyway(t, program, arguments, environment...)
	require.Empty(t, o.findings)
	return o
}

// runAnyway is run for a program in which sanitizers may find something.
func runAnyway(t *testing.T, program string, arguments []string, environment ...string) outcome {
	t.Helper()
	return runWithin(t, 10*time.Minute, program, arguments, environment...)
}

// hostEnvironment is the tests' own without the variables that configure them, with the library preloaded.
func hostEnvironment(t *testing.T, more ...string) []string {
	own := slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "TMS_") })
	if hermetic.Full {
		own = append(own, "OFTEN=1") // host.h
	}
	return append(append(own, "LD_PRELOAD="+built(t, "lib", "libtms.so"), "LD_LIBRARY_PATH="+built(t, "sim")), more...)
}

// runWithin is runAnyway for a program with a time limit of its own.
func runWithin(t *testing.T, limit time.Duration, program string, arguments []string, environment ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	command.Env = hostEnvironment(t, append([]string{"CUDASIM_MEMORY=1G"}, environment...)...)
	reports := filepath.Join(t.TempDir(), "report")
	if sanitized {
		command.Env = sanitizedEnvironment(t, command.Env, program, reports, arguments...)
	}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	require.True(t, err == nil || errors.As(err, &exit), "%v", err)
	require.NoError(t, ctx.Err(), "hangs; stderr: %s", stderr.String())
	return outcome{arguments, stdout.String(), stderr.String(), command.ProcessState, findings(t, reports)}
}

func (o outcome) succeeded(t *testing.T) outcome {
	t.Helper()
	require.Zero(t, o.state.ExitCode(), "%q: %s\n%s%s", o.arguments, o.state, o.stdout, o.stderr)
	return o
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func (o outcome) diedOf(t *testing.T, signal syscall.Signal) {
	t.Helper()
	status := o.state.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled(), "%s %s", o.state, o.stderr)
	require.Equal(t, signal, status.Signal(), o.stderr)
}

// each runs a program once with each list of arguments, some at once, and expects success.
func each(t *testing.T, program string, rows [][]string, environment ...string) {
	t.Helper()
	for _, arguments := range rows {
		var name []string
		for _, argument := range arguments {
			name = append(name, filepath.Base(argument))
		}
		t.Run(strings.Join(name, " "), func(t *testing.T) {
			t.Parallel()
			run(t, program, arguments, environment...).succeeded(t)
		})
	}
}

// alone makes lists of one argument.
func alone(arguments ...string) (rows [][]string) {
	for _, argument := range arguments {
		rows = append(rows, []string{argument})
	}
	return rows
}

var majors = []string{"libcudart.so.12", "libcudart.so.13"}

// often is hermetic.Often, but half of the usual under sanitizers, where a start takes ten times as long.
func often(soak, usual int) int {
	if sanitized {
		usual = max(1, usual/2)
	}
	return hermetic.Often(soak, usual)
}

// eachMajor returns both majors in the soak only: our C makes no difference where CUDA makes none.
func eachMajor() []string {
	if hermetic.Full {
		return majors
	}
	return majors[1:]
}

// Programs that need nothing but their arguments and environment; docs/design names tests of others.
func TestHosts(t *testing.T) {
	for _, h := range []struct{ host, environment string }{
		{"edges", ""}, {"asleep", ""}, {"backup", ""}, {"storm own", ""}, {"storm one", ""}, {"incremental", ""},
		{"sparse", ""},
		{"failures", "TMS_EXTENT_BYTES=0"}, // every segment has an extent of its own, so that more calls can fail
		{"devices both", "CUDASIM_DEVICES=2"}, {"devices ordered", "CUDASIM_DEVICES=2"},
		{"devices runtime", "CUDASIM_DEVICES=2"}, {"devices driver", "CUDASIM_DEVICES=2"},
		{"devices release", "CUDASIM_DEVICES=2"},
		{"waiting preparing", ""}, {"tags together", ""}, {"tags odd", ""},
		{"destructor", ""}, {"vanish cancelled", ""}, {"vanish jumped", ""},
	} {
		words := strings.Fields(h.host)
		cudarts := eachMajor()
		if h.host == "edges" || h.host == "devices ordered" {
			cudarts = majors
		}
		for _, cudart := range cudarts {
			t.Run(h.host+" "+cudart, func(t *testing.T) {
				t.Parallel()
				run(t, compile(t, words[0], cudart), words[1:], cmp.Or(h.environment, "NONE=")).succeeded(t)
			})
		}
	}
}

func TestDiskBackup(t *testing.T) {
	run(t, compile(t, "disk", majors[1]), []string{"contents", t.TempDir()}).succeeded(t)
}

func TestContentsNeedNoPath(t *testing.T) {
	run(t, compile(t, "disk", majors[1]), []string{"alone", t.TempDir()}, "TMPDIR="+t.TempDir()).succeeded(t)
}

func TestFilesCannotBeKept(t *testing.T) {
	run(t, compile(t, "disk", majors[1]), []string{"unkept", t.TempDir()}).succeeded(t)
}

func TestDiskDirectoryCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	const words = "not a directory; "
	for setting, arguments := range map[string][]string{
		"TMS_DISK_BACKUP_DIR": {words + "set TMS_DISK_BACKUP_DIR to a directory"},
		"TMPDIR":              {words + "TMPDIR names it: set that, or TMS_DISK_BACKUP_DIR, to a directory"},
		"NONE":                {words + "call tms_set_disk_backup_dir with a directory", "set"},
	} {
		arguments = append([]string{"unwritable", file}, arguments...)
		run(t, compile(t, "disk", majors[1]), arguments, setting+"="+file).succeeded(t)
	}
}

func TestBackupsAndDescriptors(t *testing.T) {
	run(t, compile(t, "disk", majors[1]), []string{"closed", t.TempDir()}).succeeded(t)
}

func TestTooLittleHostMemory(t *testing.T) {
	run(t, compile(t, "limits", majors[1]), []string{"host"}, "CUDASIM_MEMORY=16T").succeeded(t)
}

func TestCrashBelongsToTheHost(t *testing.T) {
	for how, signal := range map[string]syscall.Signal{
		"fault": syscall.SIGSEGV, "sent": syscall.SIGSEGV, "restored": syscall.SIGSEGV, "abort": syscall.SIGABRT,
	} {
		run(t, compile(t, "dispositions", majors[1]), []string{how}).diedOf(t, signal)
	}
}

// everyVariable lists the variables in the table of docs/settings.md, all empty: every one that the library knows.
func everyVariable(t *testing.T) (entries []string) {
	t.Helper()
	names := func(path, row string) (found []string) {
		text := read(t, filepath.Join("..", filepath.FromSlash(path)))
		for _, match := range regexp.MustCompile(row).FindAllStringSubmatch(text, -1) {
			found = append(found, match[1]+"=")
		}
		require.NotEmpty(t, found, path)
		return found
	}
	entries = names("docs/settings.md", `(?m)^\| (TMS_\w+) \|`)
	require.ElementsMatch(t, names("region/environment.c", `(?m)^\t\{"(TMS_\w+)",`), entries)
	return entries
}

func TestEnvironment(t *testing.T) {
	program := compile(t, "environment", "")
	for _, c := range []struct {
		environment []string
		want        string
		complaints  []string
	}{
		{nil, "0 0 0 0 0 pinned 0 default", nil},
		{[]string{"TMS_INIT_ENABLE=", "TMS_INIT_ENABLE_CPU_BACKUP=0"}, "0 0 0 0 0 pinned 0 default", nil},
		{[]string{"TMS_INIT_ENABLE=1", "TMS_INIT_ENABLE_CPU_BACKUP=TRUE", "TMS_INIT_CPU_BACKUP_BACKEND=mmap",
			"TMS_RETAIN_CPU_BACKUP=Yes"}, "1 1 0 0 0 mmap 1 default", nil},
		{[]string{"TMS_INIT_ENABLE=yes", "TMS_INIT_ENABLE_DISK_BACKUP=true"}, "1 0 1 0 0 pinned 0 default", nil},
		{[]string{"TMS_INIT_ENABLE_INCREMENTAL_BACKUP=1"}, "0 0 0 0 1 pinned 0 default", nil},
		{[]string{"TMS_INIT_ENABLE=maybe"}, "0 0 0 0 0 pinned 0 default", []string{"TMS_INIT_ENABLE=maybe"}},
		{[]string{"TMS_INIT_ENABLE=1", "TMS_INIT_CPU_BACKUP_BACKEND=paper", "TMS_EXTENT_BYTES=-3"},
			"1 0 0 0 0 pinned 0 default", []string{"TMS_INIT_CPU_BACKUP_BACKEND=paper", "TMS_EXTENT_BYTES=-3"}},
		{[]string{"TMS_LIMIT_BYTES=2GB"}, "0 0 0 0 0 pinned 0 default", []string{"TMS_LIMIT_BYTES=2GB"}},
		{[]string{"TMS_INIT_ENABLE_CPU_BACKUP=1", "TMS_INIT_ENABLE_DISK_BACKUP=1"}, "0 1 0 0 0 pinned 0 default",
			[]string{"TMS_INIT_ENABLE_DISK_BACKUP=1"}},
		{[]string{"TMS_INIT_ENABLE_PEER_BACKUP=1"}, "0 0 0 1 0 pinned 0 default", nil},
		{[]string{"TMS_INIT_ENABLE_DISK_BACKUP=1", "TMS_INIT_ENABLE_PEER_BACKUP=1"}, "0 0 1 0 0 pinned 0 default",
			[]string{"TMS_INIT_ENABLE_PEER_BACKUP=1"}},
		{[]string{"TMS_DISK_BACKUP_CHUNK_MB=anything"}, "0 0 0 0 0 pinned 0 default", nil}, // which clients set
		{[]string{"TMS_INIT_ENABEL=1", "TMS_VERIFY_=1", "TMS_=", "TMS", "XTMS_A=1", "TMSA=1", "tms_verify=1"},
			"0 0 0 0 0 pinned 0 default", []string{"tms: TMS_INIT_ENABEL is no variable of this library and does " +
				"nothing\n",
				"tms: TMS_VERIFY_ is no variable of this library and does nothing\n",
				"tms: TMS_ is no variable of this library"}},
		{[]string{"TMS_" + strings.Repeat("X", 1000) + "=1"}, "0 0 0 0 0 pinned 0 default", []string{"tms: TMS_XXXX"}},
		{everyVariable(t), "0 0 0 0 0 pinned 0 default", nil},
	} {
		o := run(t, program, nil, c.environment...).succeeded(t)
		require.Equal(t, strings.Repeat(c.want+"\n", 3), o.stdout, "%v", c.environment)
		require.Equal(t, len(c.complaints), strings.Count(o.stderr, "\n"), "%v: %s", c.environment, o.stderr)
		for _, complaint := range c.complaints {
			require.Contains(t, o.stderr, complaint)
		}
	}
	// A program that never uses the library gets no message from it.
	o := run(t, "/bin/sh", []string{"-c", "echo quiet"}, "TMS_INIT_ENABLE=maybe").succeeded(t)
	require.Empty(t, o.stderr)
}

// A library's constructor may run before that of libtms.so. Settings that it makes for its thread stay, and the others
// follow the environment.
func TestSettingsOfAnEarlierConstructor(t *testing.T) {
	program, early, ours := compile(t, "environment", ""), shared(t, "early"), built(t, "lib", "libtms.so")
	const usual = "1 1 0 0 0 mmap 0 default\n"
	for what, want := range map[string]string{"on": usual, "off": "0 0 0 0 0 pinned 0 default\n", "ask": usual} {
		for _, preload := range []string{early + ":" + ours, ours + ":" + early} {
			o := run(t, program, nil, "EARLY="+what, "LD_PRELOAD="+preload, "TMS_INIT_ENABLE=1",
				"TMS_INIT_ENABLE_CPU_BACKUP=1", "TMS_INIT_CPU_BACKUP_BACKEND=mmap").succeeded(t)
			require.Equal(t, want+usual+usual, o.stdout, "%s %s", what, preload)
		}
	}
}

func TestLimits(t *testing.T) {
	program := compile(t, "limits", majors[1])
	run(t, program, []string{"memory"}).succeeded(t)
	if o := run(t, program, []string{"threads"}); o.state.ExitCode() != 77 {
		o.succeeded(t)
	}
	o := run(t, "/bin/bash", []string{"-c", "ulimit -v 1000000; ulimit -u 1; cat /proc/self/status"})
	if o.state.ExitCode() == 0 { // where bash cannot fork, the limit is the reason
		require.Contains(t, o.stdout, "Threads:\t1\n")
	}
	o = run(t, "/bin/bash", []string{"-c", "ulimit -v 1000000; exec cat /proc/self/status"}).succeeded(t)
	require.Contains(t, o.stdout, "Threads:\t1\n")
}

// exports returns the names that the library is to export.
func exports(t *testing.T) []string {
	t.Helper()
	return strings.Fields(read(t, "testdata/exports.txt"))
}

// exported returns the names that are exported. The runtime's functions are there in each version of runtimeVersions, the
// first of which is the default; no other function has a version.
func exported(t *testing.T) (names []string) {
	t.Helper()
	library := built(t, "lib", "libtms.so")
	output, err := exec.Command("nm", "-D", "--defined-only", "--with-symbol-versions", library).Output()
	require.NoError(t, err)
	versions := map[string][]string{}
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		name, version, versioned := strings.Cut(fields[2], "@")
		if fields[1] == "A" { // a version itself
			continue
		}
		if !versioned || len(versions[name]) == 0 {
			names = append(names, name)
		}
		if versioned {
			versions[name] = append(versions[name], version)
		}
	}
	for _, name := range names {
		if strings.HasPrefix(name, "cuda") {
			require.ElementsMatch(t, runtimeVersions, versions[name], name)
		} else {
			require.Empty(t, versions[name], name)
		}
	}
	return names
}

var runtimeVersions = []string{"@libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}

func TestExports(t *testing.T) {
	require.ElementsMatch(t, exports(t), exported(t))
	output, err := exec.Command("readelf", "-d", "-W", built(t, "lib", "libtms.so")).Output()
	require.NoError(t, err)
	require.NotRegexp(t, `\(NEEDED\).*cuda`, string(output))
	require.Contains(t, string(output), "NODELETE")
}

// A program that was compiled against an older tms.h runs with this library: testdata/interface.txt has what tms.h
// declares, and lines of it change only with the first number of the version.
func TestTheInterfaceOfCKeepsItsDeclarations(t *testing.T) {
	code := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(read(t, "tms.h"), "")
	code = regexp.MustCompile(`(?m)^#.*$|^extern "C" \{$|^\}$`).ReplaceAllString(code, "")
	declared := strings.ReplaceAll(strings.Join(strings.Fields(code), " "), "; ", ";\n")
	require.Equal(t, read(t, "testdata/interface.txt"), declared+"\n")
}

func TestHeaderDeclaresEveryExport(t *testing.T) {
	header := read(t, "tms.h")
	for _, name := range exports(t) {
		switch name {
		case "tms_driver_function", "tms_is_pausable", "tms_refused", "tms_room": // libtms_reach.so alone calls them
			continue
		}
		if strings.HasPrefix(name, "tms_") || strings.HasPrefix(name, "set_") {
			require.Contains(t, header, name+"(")
		}
	}
}
