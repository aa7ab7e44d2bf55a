package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
)

// Manners: what a process notices of an inherited libtms.so. Every process under the user's command inherits it, and
// few ever use it.

// shared compiles testdata/NAME.c into a shared library.
func shared(t *testing.T, name string, more ...string) string {
	t.Helper()
	return hermetic.Compile(t, name+".so", append(more, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror",
		filepath.Join("testdata", name+".c"), "-ldl")...)
}

func field(t *testing.T, text, name string) int {
	t.Helper()
	match := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+)`).FindStringSubmatch(text)
	require.NotNil(t, match, "%s in %s", name, text)
	value, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	return value
}

// What it adds to a start is measured by scripts/bench.sh start.
func TestUnusedCostsLittle(t *testing.T) {
	noop := shared(t, "noop")
	look := []string{"/proc/self/smaps_rollup", "/proc/self/status"}
	with := run(t, "/bin/cat", look)
	without := run(t, "/bin/cat", look, "LD_PRELOAD="+noop)
	with.succeeded(t)
	without.succeeded(t)
	// Resident pages of the file are no measure: the kernel maps as many around each touched one as its cache holds
	// together. Anonymous memory is what each process pays for.
	over := func(name string) int { return field(t, with.stdout, name) - field(t, without.stdout, name) }
	t.Logf("over a library that does nothing: %d KiB anonymous, %d KiB resident", over("Anonymous"), over("Rss"))
	require.LessOrEqual(t, over("Anonymous"), 128)
	require.Equal(t, 1, field(t, with.stdout, "Threads"))
	for _, mask := range []string{"SigCgt", "SigIgn", "SigBlk"} {
		line := regexp.MustCompile(mask + `:\s+\S+`)
		require.Equal(t, line.FindString(without.stdout), line.FindString(with.stdout))
	}
}

// Programs behave as they do without the library, also under limits.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
		return path
	}
	c := write("hello.c", "#include <stdio.h>\nint main(void) { puts(\"hello from C\"); return 0; }\n")
	golang := write("hello.go", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello from Go\") }\n")
	hello := filepath.Join(dir, "hello-go")
	output, err := exec.Command("go", "build", "-o", hello, golang).CombinedOutput()
	require.NoError(t, err, "%s", output)
	static := filepath.Join(dir, "hello-static")
	output, err = exec.Command("cc", "-static", "-o", static, c).CombinedOutput()
	require.NoError(t, err, "%s", output)

	// RLIMIT_NPROC does not bind root, so that limit is tried as another user, who may read dir alone.
	library := filepath.Join(dir, "libtms.so")
	content := read(t, built(t, "lib", "libtms.so"))
	require.NoError(t, os.WriteFile(library, []byte(content), 0o755))
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		require.NoError(t, os.Chmod(parent, 0o777))
	}
	execute := func(script, preload string, somebody bool) outcome {
		command := exec.Command("/bin/bash", "-c", script)
		command.Dir = dir
		command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LD_PRELOAD=" + preload}
		if somebody && hermetic.HasOtherUsers() {
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
		}
		var stdout, stderr bytes.Buffer
		command.Stdout, command.Stderr = &stdout, &stderr
		_ = command.Run()
		require.NotNil(t, command.ProcessState)
		return outcome{stdout: stdout.String(), stderr: stderr.String(), state: command.ProcessState}
	}
	for _, limit := range []string{":", "ulimit -v 1000000", "ulimit -u 1"} {
		for name, command := range map[string]string{
			"bash":    "for i in 1 2 3; do echo $i; done",
			"exec":    "exec grep -E '^(Threads|SigCgt|SigBlk):' /proc/self/status",
			"python3": "exec /usr/bin/python3 -c 'print(sum(range(10)))'",
			"gcc":     fmt.Sprintf("gcc -o %s/out %s && %s/out", dir, c, dir),
			"node":    "exec node -e 'console.log(6*7)'",
			"Go":      "exec " + hello,
			"static":  "exec " + static,
			"parent":  static + "; " + static,
			"setuid":  "su -s /bin/sh nobody -c 'echo $((1+1))'",
		} {
			if limit == "ulimit -u 1" {
				// bash would wait half a minute for a fork that this limit forbids.
				switch name {
				case "gcc":
					command = "exec gcc --version"
				case "parent":
					continue
				}
			}
			script := limit + "; " + command
			t.Run(name+" "+limit, func(t *testing.T) {
				somebody := limit == "ulimit -u 1"
				plain, ours := execute(script, "", somebody), execute(script, library, somebody)
				require.Equal(t, plain.state.String(), ours.state.String(),
					"with: %s\nwithout: %s", ours.stderr, plain.stderr)
				require.Equal(t, plain.stdout, ours.stdout)
				if plain.state.Success() {
					// ld.so itself says when a set-user-ID program refuses a preload.
					refused := regexp.MustCompile(`(?m)^ERROR: ld.so.*cannot be preloaded.*\n`)
					require.Equal(t, plain.stderr, refused.ReplaceAllString(ours.stderr, ""))
				}
				if name == "exec" || name == "Go" && limit == ":" {
					require.True(t, plain.state.Success(), plain.stderr)
				}
			})
		}
	}
}

// Loading makes no system call that the loader does not make itself: some sandboxes kill for more.
func TestLoadingInASandbox(t *testing.T) {
	program := compile(t, "sandbox", "")
	run(t, program, []string{"strict", "/bin/true"}, "LD_PRELOAD=").succeeded(t)
	run(t, program, []string{"strict", "/bin/true"}).succeeded(t)
}

// A sandbox may answer system calls in a handler, also those of the library.
func TestEmulatedSystemCalls(t *testing.T) {
	program := compile(t, "emulated", majors[1])
	each(t, program, [][]string{{"thread", t.TempDir()}, {"alternate", t.TempDir()}})
}

// These functions of x/sys make their calls in assembly, on a goroutine's stack, where a sandbox's handler does not fit.
// Those of os and syscall are the copies that scripts/build.sh makes.
func TestNoCallOnAGoroutinesStack(t *testing.T) {
	t.Parallel()
	list, err := exec.Command("go", "list", "-deps", "-f", "{{if .Module}}{{.Module.Path}} {{.Dir}}{{end}}", ".").Output()
	require.NoError(t, err)
	calls := regexp.MustCompile(`\bunix\.(Exit|Getpid|Getppid|Gettid|Getuid|Geteuid|Getgid|Getegid|Getresuid|Getresgid|Sync|` +
		`Umask|(Raw)?SyscallNoError)\(`)
	files := 0
	for line := range strings.Lines(string(list)) {
		module, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		if module != "tms" {
			continue
		}
		sources, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			text, err := os.ReadFile(source)
			require.NoError(t, err)
			require.Empty(t, calls.FindAllString(string(text), -1), source)
			files++
		}
	}
	require.Greater(t, files, 100)
}

// musl's loader accepts the library in programs that do not use it.
func TestMusl(t *testing.T) {
	program, compiler := filepath.Join(t.TempDir(), "hello"), hermetic.Program(t, "musl-gcc")
	source := program + ".c"
	require.NoError(t, os.WriteFile(source, []byte(`#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
	int status = -1;
	if (fork() == 0)
		_exit(3);
	wait(&status);
	printf("%d\n", WEXITSTATUS(status));
	return 0;
}
`), 0o644))
	output, err := exec.Command(compiler, "-o", program, source).CombinedOutput()
	require.NoError(t, err, "%s", output)
	for _, environment := range [][]string{nil, {"TMS_TRACE=" + program + ".csv", "TMS_INIT_ENABLE=1"}} {
		o := run(t, program, nil, environment...).succeeded(t)
		require.Equal(t, "3\n", o.stdout)
	}
}

func TestSignals(t *testing.T) {
	run(t, compile(t, "signals", majors[1]), []string{strconv.Itoa(often(300, 60))}).succeeded(t)
}

func TestStacksOfHandlers(t *testing.T) {
	run(t, compile(t, "stacks", majors[1]), nil).succeeded(t)
}

func TestDispositionsOfFaults(t *testing.T) {
	run(t, compile(t, "dispositions", majors[1]), nil).succeeded(t)
}

func TestHandlersSetWhileTheLibraryStarts(t *testing.T) {
	program := compile(t, "dispositions", majors[1])
	for _, signal := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGPIPE, syscall.SIGURG, syscall.SIGSEGV,
		syscall.SIGBUS} {
		repeat(t, 200, program, []string{strconv.Itoa(int(signal))})
	}
}

// A failure inside Go becomes an error code, and does not end the process.
func TestFaultsInside(t *testing.T) {
	o := run(t, compile(t, "faults", majors[1]), nil).succeeded(t)
	require.Contains(t, o.stderr, "internal error")

	runAnyway(t, compile(t, "faults", majors[1]), []string{"in a handler"}).diedOf(t, syscall.SIGSEGV)
}

func TestForkInEveryState(t *testing.T) {
	program := compile(t, "forks", majors[1])
	children, one, many := strconv.Itoa(often(1008, 48)), strconv.Itoa(often(256, 16)), strconv.Itoa(often(1008, 64))
	each(t, program, [][]string{
		{"unused", children, "1"}, {"unused", children, "16"}, {"used", children, "1"}, {"used", children, "16"},
		{"pausing", children, "1"}, {"pausing", children, "16"}, {"starting", one, "1"}, {"starting", many, "16"},
	})
}

func TestForkUnheardOf(t *testing.T) {
	children := strconv.Itoa(often(200, 40))
	program := compile(t, "forks", majors[1])
	each(t, program, [][]string{{"raw", children, "0"}, {"refused", children, "0"}})
}

func TestLeavingWhileOthersAreInside(t *testing.T) {
	program := compile(t, "leaving", majors[1])
	for _, how := range []string{"exec", "exit", "return", "quick_exit", "atexit"} {
		repeat(t, 300, program, []string{how})
	}
}

func TestClosedAndOpenedAgain(t *testing.T) {
	repeat(t, 300, compile(t, "closing", ""), []string{built(t, "lib", "libtms.so")}, "LD_PRELOAD=")
}

// repeat runs a program many times in the soak, and otherwise a few times, some at once; every run must succeed.
func repeat(t *testing.T, times int, program string, arguments []string, environment ...string) {
	t.Helper()
	for range often(times, times/25) {
		each(t, program, [][]string{arguments}, environment...)
	}
}

func TestOtherInterposers(t *testing.T) {
	program := compile(t, "chained", majors[1])
	ours, other := built(t, "lib", "libtms.so"), shared(t, "interposer")
	run(t, program, []string{"before"}, "LD_PRELOAD="+other+":"+ours).succeeded(t)
	run(t, program, []string{"after"}, "LD_PRELOAD="+ours+":"+other).succeeded(t)
}

// Libraries that share out a GPU define dlsym, and are preloaded into everything.
func TestOtherDlsym(t *testing.T) {
	hermetic.Thorough(t)
	tms, reach, hook := built(t, "lib", "libtms.so"), built(t, "lib", "libtms_reach.so"), shared(t, "dlsymhook")
	old := shared(t, "dlsymhook", "-Wl,--hash-style=sysv") // which has no table of the newer kind
	for _, host := range []struct{ name, program string }{
		{"", compile(t, "hooked", majors[1])},
		{" a program that is linked to libcuda",
			compile(t, "hooked", majors[1], "-DLINKED", "-Wl,--no-as-needed", "-l:libcuda.so.1")},
	} {
		for _, libraries := range [][]string{{tms, reach, hook}, {hook, tms, reach}, {old, tms, reach}} {
			preload := "LD_PRELOAD=" + strings.Join(libraries, ":")
			where := "behind"
			if libraries[0] != tms {
				where = "before"
			}
			t.Run(where+host.name, func(t *testing.T) {
				run(t, host.program, []string{where}, preload).succeeded(t)
				const script = "import ctypes, ssl; print(ctypes.CDLL(None).abs(-42))"
				o := run(t, "python3", []string{"-c", script}, preload).succeeded(t)
				require.Equal(t, "42\n", o.stdout)
			})
		}
	}
}

// A wrapper may preload the library that is in LD_PRELOAD already, from another folder.
func TestTwoCopiesOfTheLibrary(t *testing.T) {
	tms, reach := built(t, "lib", "libtms.so"), built(t, "lib", "libtms_reach.so")
	other := filepath.Join(t.TempDir(), "libtms.so")
	text, err := os.ReadFile(tms)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other, text, 0o600))
	for _, program := range []string{compile(t, "lasterror", majors[1]),
		compile(t, "lasterror", majors[1], "-Wl,--no-as-needed", "-l:libcuda.so.1")} {
		for _, libraries := range [][]string{{tms, other}, {tms, reach, other}, {other, tms, reach}} {
			run(t, program, nil, "LD_PRELOAD="+strings.Join(libraries, ":")).succeeded(t)
		}
	}
}

// Plug-ins are closed and opened again, and with them the libraries of CUDA that they brought.
func TestLibrariesThatComeAgain(t *testing.T) {
	program := compile(t, "reopened", "")
	plugins := []string{"plugins"}
	for _, cudart := range majors {
		plugins = append(plugins, hermetic.Compile(t, "plugin.so", "-shared", "-fPIC", "-O1", "testdata/plugin.c",
			"-L"+built(t, "sim"), "-l:"+cudart))
	}
	for _, environment := range usedAndNot(t) {
		each(t, program, [][]string{plugins[:2], plugins, {"driver"}}, environment...)
	}
}

// usedAndNot returns environments with and without libtms_reach.so, and a region in which a program begins.
func usedAndNot(t *testing.T) (environments [][]string) {
	for _, preload := range []string{"LD_PRELOAD=" + built(t, "lib", "libtms.so"), reaching(t)} {
		environments = append(environments, []string{preload},
			[]string{preload, "TMS_INIT_ENABLE=1", "TMS_INIT_ENABLE_CPU_BACKUP=1"})
	}
	return environments
}

func TestOtherMallocs(t *testing.T) {
	program, ours := compile(t, "storm", majors[1]), built(t, "lib", "libtms.so")
	for _, name := range []string{"libjemalloc.so.2", "libtcmalloc_minimal.so.4"} {
		found, err := filepath.Glob("/usr/lib/*/" + name)
		require.NoError(t, err)
		if len(found) == 0 {
			hermetic.Missing(t, name)
		}
		for _, preload := range []string{found[0] + ":" + ours, ours + ":" + found[0]} {
			each(t, program, alone("one"), "LD_PRELOAD="+preload)
		}
	}
}

func TestLibcudartOfEveryKind(t *testing.T) {
	twelve, thirteen := majors[0], majors[1]
	each(t, compile(t, "majors", ""), [][]string{
		{"local", twelve}, {"local", thirteen}, {"local", twelve, thirteen},
		{"global", twelve}, {"global", thirteen}, {"global", twelve, thirteen},
	})
}

// versioned compiles testdata/versioned.c against the first of some libraries, found in a folder.
func versioned(t *testing.T, folder, cudart string, size int) string {
	t.Helper()
	return hermetic.Compile(t, "versioned.so", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror",
		fmt.Sprint("-DSIZE=", size), "testdata/versioned.c", "-L"+folder, "-l:"+cudart, "-Wl,-rpath,"+folder,
		"-Wl,--unresolved-symbols=ignore-in-object-files")
}

// Each library's calls go to the libcudart that it is linked with, whichever was there first.
func TestEachLibraryHasItsOwnLibcudart(t *testing.T) {
	program := compile(t, "versions", "")
	twelve, thirteen := versioned(t, built(t, "sim"), majors[0], 24), versioned(t, built(t, "sim"), majors[1], 88)
	for _, preload := range []string{"LD_PRELOAD=" + built(t, "lib", "libtms.so"), reaching(t)} {
		for name, libraries := range map[string][]string{"12": {twelve}, "13": {thirteen}, "12, 13": {twelve, thirteen},
			"13, 12": {thirteen, twelve}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(t, program, libraries, preload).succeeded(t)
			})
		}
	}
}

// A program that is linked with libtms.so needs no preload, if it is linked in the right order, and is told otherwise.
func TestLinkedWithoutAPreload(t *testing.T) {
	folders := []string{built(t, "lib"), built(t, "sim")}
	for _, c := range []struct {
		name      string
		libraries []string
		code      int
		out, said string
	}{
		{"before libcudart", []string{"-ltms", "-Wl,--no-as-needed", "-lcudart"}, 0,
			"64 MiB are free for others\nthe last byte is 42\n", `^$`},
		{"without libcudart", []string{"-Wl,--as-needed", "-ltms", "-lcudart"}, 1, "",
			`^cudaError 302: no libcudart is loaded; link the program .*\$\(tms --libs\) before -lcudart.*; in Python, import torch or cupy first\n$`},
		{"behind libcudart", []string{"-Wl,--as-needed", "-lcudart", "-ltms"}, 0,
			"0 MiB are free for others\nthe last byte is 42\n",
			`^tms: the program is linked with libcudart before libtms.so, so that its memory is not pausable; .*\n$`},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := []string{"../docs/examples/linked.c", "-I" + folders[0], "-L" + folders[0], "-L" + folders[1]}
			program := hermetic.Compile(t, "linked", append(flags, c.libraries...)...)
			o := run(t, program, nil, "LD_PRELOAD=", "LD_LIBRARY_PATH="+strings.Join(folders, ":"))
			require.Equal(t, c.code, o.state.ExitCode(), o.stderr)
			require.Equal(t, c.out, o.stdout)
			require.Regexp(t, c.said, o.stderr)
		})
	}
	// A preload comes before both.
	program := hermetic.Compile(t, "linked", "../docs/examples/linked.c", "-I"+folders[0], "-L"+folders[0], "-L"+folders[1],
		"-lcudart", "-ltms")
	o := run(t, program, nil, "LD_LIBRARY_PATH="+strings.Join(folders, ":")).succeeded(t)
	require.Contains(t, o.stdout, "64 MiB")
	require.Empty(t, o.stderr)
}

// auditwheel renames a libcudart that it copies into a wheel.
func TestRenamedLibcudart(t *testing.T) {
	for _, name := range []string{"libcudart-1f2e3d4c.so.12", "libcudart.1f2e3d4c.so.12"} {
		cudart := hermetic.Compile(t, name, "-shared", "-fPIC", "-O1", "-Wl,-soname,"+name,
			"-Wl,--version-script=../internal/cudasim/runtime/libcudart.12.map", "testdata/renamed.c")
		library := versioned(t, filepath.Dir(cudart), name, 24)
		run(t, compile(t, "alone", ""), []string{library}).succeeded(t)
	}
}

// A library that is bound to a copy learns of the errors there, whichever copy other calls go to, and resets the device
// there.
func TestTwoCopiesOfALibcudart(t *testing.T) {
	const name = "libcudart-1f2e3d4c.so.12"
	folder := t.TempDir()
	copied := filepath.Join(folder, "libcudart-2a3b4c5d.so.12")
	cudart := hermetic.Compile(t, name, "-shared", "-fPIC", "-O1", "-Wl,-soname,"+name,
		"-Wl,--version-script=../internal/cudasim/runtime/libcudart.12.map", "testdata/renamed.c")
	other := hermetic.Compile(t, filepath.Base(copied), "-shared", "-fPIC", "-O1", "-Wl,-soname,"+filepath.Base(copied),
		"-Wl,--version-script=../internal/cudasim/runtime/libcudart.12.map", "testdata/renamed.c")
	one := versioned(t, filepath.Dir(cudart), name, 24)
	two := versioned(t, filepath.Dir(other), filepath.Base(copied), 24)
	run(t, compile(t, "copies", ""), []string{one, "98", two, "98"}).succeeded(t)
}

// A thread that waits for a resume, or that a constructor waits for, may be a thread with the loader's lock.
func TestLoaderIsNotNeeded(t *testing.T) {
	library := shared(t, "constructor")
	for _, cudart := range eachMajor() {
		program := compile(t, "loader", cudart, "-l:libcuda.so.1", "-rdynamic")
		each(t, program, [][]string{{"dlopen", library}, {"callback", library}, {"calls", library}, {"region", library},
			{"alone", library}}, reaching(t))
		each(t, program, [][]string{{"calls", library}, {"region", library}, {"alone", library}})
	}
}

func TestCancelledInTheFirstAllocation(t *testing.T) {
	run(t, compile(t, "cancelled", majors[1]), nil).succeeded(t)
}

func TestLargeThreadLocalData(t *testing.T) {
	hermetic.Thorough(t)
	run(t, compile(t, "threadlocal", majors[1]), nil).succeeded(t)
}

func TestArgumentsBehindABarrier(t *testing.T) {
	run(t, compileWithDriver(t, "barrier", majors[1]), nil).succeeded(t)
}

func TestDriverInANamespaceOfItsOwn(t *testing.T) {
	library := versioned(t, built(t, "sim"), majors[1], 88)
	run(t, compile(t, "namespace", majors[1]), []string{library}, reaching(t)).succeeded(t)
}

func TestLockedMemory(t *testing.T) {
	if o := run(t, compile(t, "locked", majors[1]), nil); o.state.ExitCode() != 77 {
		o.succeeded(t)
	}
}

// Whatever ends a paused process, the directory is empty and its file system has the space back; contents in host memory
// are the process's alone, and go with it.
func TestEndWhilePaused(t *testing.T) {
	free := func(folder string) (blocks uint64) {
		var stat unix.Statfs_t
		require.NoError(t, unix.Statfs(folder, &stat))
		return stat.Bfree
	}
	for _, contents := range []string{"disk", "host"} {
		for _, how := range []string{"exit", "quick_exit", "kill"} {
			folder := t.TempDir()
			mounted := unix.Mount("none", folder, "tmpfs", 0, "size=64m") == nil // needs a privilege
			before := free(folder)
			o := run(t, compile(t, "exits", majors[1]), []string{contents, how, folder})
			if how == "kill" {
				o.diedOf(t, syscall.SIGKILL)
			} else {
				o.succeeded(t)
			}
			left, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Empty(t, left)
			if mounted {
				require.Equal(t, before, free(folder))
				require.NoError(t, unix.Unmount(folder, 0))
			}
		}
	}
}

func TestDecimalComma(t *testing.T) {
	folder := t.TempDir()
	source := filepath.Join(folder, "source")
	require.NoError(t, os.WriteFile(source, []byte("comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point \",\"\n"+
		"thousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n"), 0o600))
	output, err := exec.Command("localedef", "-c", "-i", source, "--no-archive", filepath.Join(folder, "comma")).
		CombinedOutput()
	if _, made := os.Stat(filepath.Join(folder, "comma", "LC_NUMERIC")); made != nil { // -c ends with 1 after warnings
		t.Logf("%v: %s", err, output)
		hermetic.Missing(t, "localedef")
	}
	run(t, compile(t, "comma", majors[1]), nil, reaching(t), "LOCPATH="+folder).succeeded(t)
}

// A crash of Python code after use is reported by faulthandler and dies by its own signal.
func TestFaulthandler(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		script := `
import ctypes, faulthandler, os, sys
if sys.argv[1] == "before": faulthandler.enable()
tms = ctypes.CDLL(None)
tms.tms_torch_malloc.restype = ctypes.c_void_p
assert tms.tms_torch_malloc(ctypes.c_ssize_t(100), 0, None)
if sys.argv[1] == "after": faulthandler.enable()
ctypes.string_at(8)
`
		o := run(t, "python3", []string{"-c", script, when})
		o.diedOf(t, syscall.SIGSEGV)
		require.Contains(t, o.stderr, "Fatal Python error: Segmentation fault")
		require.NotContains(t, o.stderr, "goroutine")
	}
}

func TestNoDescriptorLeft(t *testing.T) {
	run(t, compile(t, "limits", majors[1]), []string{"descriptors"}).succeeded(t)
}
