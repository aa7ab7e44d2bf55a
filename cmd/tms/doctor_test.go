package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/doctor"
	"tms/internal/snapshot/tree"
)

// The tests run the command itself, over the simulator, on C programs from testdata.

var tms string // the built command

func TestMain(m *testing.M) {
	if os.Args[0] == tree.InitName { // of a steppedCommand
		os.Exit(tree.Init())
	}
	if os.Getenv(atStep) != "" { // see steppedCommand
		actAtStep()
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	flag.Parse()
	os.Exit(inHalves(m, func() error {
		tms = filepath.Join(os.TempDir(), "tms")
		build := exec.Command("go", "build", "-ldflags=-s -w", "-o", tms, ".") // as scripts/build.sh does
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	}))
}

func built(t *testing.T, path ...string) string {
	t.Helper()
	full, err := filepath.Abs(filepath.Join(append([]string{"..", "..", "build"}, path...)...))
	require.NoError(t, err)
	_, err = os.Stat(full)
	require.NoError(t, err, "run scripts/build.sh first")
	return full
}

// compile builds testdata/NAME.c, as a library if the output's name says so. Do not change it: other tests have it,
// too.
func compile(t *testing.T, name, output string, flags ...string) string {
	t.Helper()
	arguments := []string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", filepath.Join("testdata", name+".c")}
	if strings.Contains(output, ".so") {
		arguments = append(arguments, "-shared", "-fPIC")
	}
	return hermetic.Compile(t, output, append(arguments, flags...)...)
}

// library builds a library from text, in a folder of its own if the name is no path.
func library(t *testing.T, name, text string, flags ...string) string {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(t.TempDir(), name)
	}
	c := exec.Command("cc", append([]string{"-shared", "-fPIC", "-o", name, "-x", "c", "-", "-x", "none"}, flags...)...)
	c.Stdin = strings.NewReader(text)
	said, err := c.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return name
}

func copied(t *testing.T, from, to string) string {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	executable(t, to, content)
	return to
}

// executable writes a program. A child that another test starts at the same moment would have it open for writing, and
// then nothing can execute it: so none starts until it is closed.
func executable(t *testing.T, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, content, 0o700))
}

// cudart returns the flags to link with it.
func cudart(t *testing.T) []string {
	return []string{"-Wl,--no-as-needed", "-L" + built(t, "sim"), "-l:libcudart.so.13"}
}

// uses returns a program that uses the runtime, and usual one that does so with a shared libcudart.
func uses(t *testing.T, flags ...string) string {
	t.Helper()
	return compile(t, "program", "uses", append(flags, "-DUSES")...)
}

func usual(t *testing.T) string {
	t.Helper()
	return uses(t, cudart(t)...)
}

// plain returns a program that knows nothing of CUDA.
func plain(t *testing.T, flags ...string) string {
	t.Helper()
	return compile(t, "program", "plain", flags...)
}

// report is the JSON that the command prints. TestText checks its names.
type report struct{ doctor.Report }

// execute starts the command with nothing in its environment that could change the answer, except what is given here.
// Later entries win.
func execute(t *testing.T, wrapper, arguments []string, environment ...string) (stdout, stderr string, code int) {
	t.Helper()
	command := exec.Command(tms, arguments...)
	if wrapper != nil {
		command = exec.Command(wrapper[0], append(append(wrapper[1:], tms), arguments...)...)
	}
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + built(t, "sim"),
		"CUDASIM_DEVICES=2",
		"CUDASIM_MEMORY=64M", "TMS_LIBRARY=" + built(t, "lib", "libtms.so")}, environment...)
	return ran(t, command)
}

func parse(t *testing.T, stdout, stderr string, code int) report {
	t.Helper()
	require.Empty(t, stderr)
	decoder := json.NewDecoder(strings.NewReader(stdout))
	var r report
	require.NoError(t, decoder.Decode(&r), stdout)
	require.False(t, decoder.More(), "more than one object: %s", stdout)
	wantCode := 0
	for _, f := range r.Findings {
		require.Contains(t, []doctor.Severity{"ok", "note", "warning", "error"}, f.Severity)
		require.NotEmpty(t, f.ID)
		require.NotEmpty(t, f.What)
		require.NotContains(t, f.What+f.Do, "\n")
		if f.Severity == "error" {
			wantCode = 1
			require.NotEmpty(t, f.Do, f.What)
		}
	}
	require.Equal(t, wantCode == 0, r.CanInterpose)
	require.Equal(t, wantCode, code)
	return r
}

func examine(t *testing.T, arguments []string, environment ...string) report {
	t.Helper()
	stdout, stderr, code := execute(t, nil, append([]string{"doctor", "--json"}, arguments...), environment...)
	return parse(t, stdout, stderr, code)
}

// examineUnder examines the machine for a program that a line of shell limits.
func examineUnder(t *testing.T, line string) report {
	t.Helper()
	stdout, stderr, code := execute(t, []string{"/bin/sh", "-c", line + ` && exec "$0" "$@"`},
		[]string{"doctor", "--json"})
	return parse(t, stdout, stderr, code)
}

// with requires exactly these errors and warnings, as "severity id", and no others.
func (r report) with(t *testing.T, want ...string) report {
	t.Helper()
	got := []string{}
	for _, f := range r.Findings {
		if f.Severity == "error" || f.Severity == "warning" {
			got = append(got, string(f.Severity)+" "+f.ID)
		}
	}
	require.ElementsMatch(t, want, got, "%v", r.Findings)
	return r
}

// find returns the only finding of that severity and id.
func (r report) find(t *testing.T, severity doctor.Severity, id string) doctor.Finding {
	t.Helper()
	found := slices.DeleteFunc(slices.Clone(r.Findings), func(f doctor.Finding) bool {
		return f.Severity != severity || f.ID != id
	})
	require.Len(t, found, 1, "%s %s in %v", severity, id, r.Findings)
	return found[0]
}

// says requires this finding, with the words, and of errors and warnings exactly this one, if it is one.
func (r report) says(t *testing.T, which, words string) report {
	t.Helper()
	severity, id, _ := strings.Cut(which, " ")
	if severity == "error" || severity == "warning" {
		r.with(t, which)
	} else {
		r.with(t)
	}
	found := r.find(t, doctor.Severity(severity), id)
	require.Contains(t, found.What+"; "+found.Do, words)
	return r
}

func (r report) lacks(t *testing.T, id string) report {
	t.Helper()
	for _, f := range r.Findings {
		require.NotEqual(t, id, f.ID, f.What)
	}
	return r
}

func TestMachine(t *testing.T) {
	t.Parallel()
	r := examine(t, nil).with(t)
	require.True(t, r.Driver.Loaded)
	require.Regexp(t, `^\d+\.\d+$`, r.Driver.CUDAVersion)
	require.Len(t, r.Devices, 2)
	for n, d := range r.Devices {
		require.Equal(t, n, d.Ordinal)
		require.Equal(t, uuidOf(n), d.UUID)
		require.True(t, d.VMM)
		require.EqualValues(t, 64<<20, d.MemoryBytes)
		require.EqualValues(t, 2<<20, d.GranularityBytes)
	}
	require.Equal(t, built(t, "lib", "libtms.so"), r.Library.Path)
	require.Nil(t, r.Program)
	r.find(t, "ok", "vmm")
	r.find(t, "note", "checkpoint")
	r.lacks(t, "nccl-graphs")

	r = examine(t, nil, "TMS_LIBRARY=").with(t, "warning library")
	require.Nil(t, r.Library)
	r = examine(t, nil, "TMS_CRIU=/none").with(t)
	r.find(t, "note", "snapshot")
}

func TestText(t *testing.T) {
	t.Parallel()
	program := usual(t)
	stdout, stderr, code := execute(t, nil, []string{"doctor", program}, "CUDASIM_SHARED=doctor")
	require.Empty(t, stderr)
	require.Zero(t, code)
	for _, line := range []string{
		`(?m)^driver +CUDA 13\.\d`, `(?m)^GPU 1 +64.0 MiB, .* 2.00 MiB ` + uuidOf(1) + `$`, `(?m)^program +` + program + `$`,
		`(?m)^cudart +.*/libcudart\.so\.13$`, `(?m)^ok +vmm +every device`, `(?m)^ +-> start it with tms run -- COMMAND.*LD_PRELOAD=/`,
		`\nThe program can be interposed\.\n$`,
	} {
		require.Regexp(t, line, stdout)
	}
	require.NotContains(t, stdout, "\x1b")
	stdout, _, _ = execute(t, nil, []string{"doctor", "--json", program})
	for _, name := range strings.Fields(`can_interpose driver loaded cuda_version error devices ordinal uuid memory_bytes vmm
		granularity_bytes host address_space_limit_bytes library path machine program script
		loader libtms pid preloaded cudart linkage libraries major findings severity id what do`) {
		require.Contains(t, stdout, `"`+name+`":`)
	}

	stdout, _, code = execute(t, nil, []string{"doctor"}, "CUDASIM_DEVICES=0")
	require.Equal(t, 1, code)
	require.Regexp(t, `\nA program on this machine cannot be interposed\.\n$`, stdout)
}

func TestNoDriver(t *testing.T) {
	t.Parallel()
	// An unusable file hides a real driver, which the machine may have.
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "libcuda.so.1"), []byte("no library"), 0o600))
	program := usual(t)
	r := examine(t, []string{program}, "LD_LIBRARY_PATH="+folder+":"+built(t, "sim")).with(t, "error driver")
	require.False(t, r.Driver.Loaded)
	require.NotEmpty(t, r.Driver.Error)
	require.Empty(t, r.Devices)
	require.NotNil(t, r.Devices)
	require.Equal(t, "shared", r.Program.Cudart.Linkage) // it reports what it can
}

// fakeDriver builds a driver with every function that the command binds.
func fakeDriver(t *testing.T) string {
	bound, err := os.ReadFile("../../vmm/cuda/driver.go")
	require.NoError(t, err)
	source, err := os.ReadFile("testdata/driver.c")
	require.NoError(t, err)
	text := string(source)
	for _, name := range regexp.MustCompile(`\bcu[A-Z]\w+`).FindAllString(string(bound), -1) {
		if !strings.Contains(text, " "+name+"(") {
			text += "int " + name + "(void) { return 0; }\n"
		}
	}
	folder := t.TempDir()
	library(t, filepath.Join(folder, "libcuda.so.1"), text)
	return folder
}

func TestDrivers(t *testing.T) {
	t.Parallel()
	folder := fakeDriver(t)
	libraries := "LD_LIBRARY_PATH=" + folder + ":" + built(t, "sim")
	ask := func(environment ...string) report {
		return examine(t, nil, append([]string{libraries}, environment...)...)
	}
	ask().with(t)
	r := ask("FAKE_VMM=1").says(t, "warning vmm", "device 1")
	require.True(t, r.Devices[0].VMM)
	require.False(t, r.Devices[1].VMM)
	ask("FAKE_VMM=0").with(t, "error vmm")
	ask("FAKE_DEVICES=0").with(t, "error devices")
	for code, advice := range map[int]string{100: "/dev/nvidia", 34: "stubs", 802: "fabricmanager", 803: "reboot",
		804: "compat", 2: "ulimit -v", 999: "kernel log"} {
		r := ask(fmt.Sprintf("FAKE_INIT=%d", code)).says(t, "error driver", advice)
		require.Contains(t, r.Driver.Error, fmt.Sprintf("(%d)", code))
	}

	program := usual(t)
	examine(t, []string{program}, libraries, "FAKE_VERSION=12040").with(t, "error cudart-version")
	examine(t, []string{program}, libraries, "FAKE_VERSION=13020").with(t)
}

func TestSharedRuntime(t *testing.T) {
	t.Parallel()
	flags := cudart(t)
	for name, flags := range map[string][]string{
		"LD_LIBRARY_PATH": flags,
		"RUNPATH":         append(flags, "-Wl,--enable-new-dtags,-rpath,"+built(t, "sim")),
		"RPATH":           append(flags, "-Wl,--disable-new-dtags,-rpath,"+built(t, "sim")),
	} {
		t.Run(name, func(t *testing.T) {
			program := uses(t, flags...)
			r := examine(t, []string{program}).says(t, "ok program", "LD_PRELOAD="+built(t, "lib", "libtms.so"))
			require.Equal(t, program, r.Program.Path)
			require.Equal(t, "shared", r.Program.Cudart.Linkage)
			require.Len(t, r.Program.Cudart.Libraries, 1)
			require.Equal(t, built(t, "sim", "libcudart.so.13"), r.Program.Cudart.Libraries[0].Path)
			require.Equal(t, 13, r.Program.Cudart.Libraries[0].Major)
			r.lacks(t, "nccl-graphs")

			// Only the driver stays in its place.
			elsewhere := t.TempDir()
			require.NoError(t, os.Symlink(built(t, "sim", "libcuda.so.1"), filepath.Join(elsewhere, "libcuda.so.1")))
			r = examine(t, []string{program}, "LD_LIBRARY_PATH="+elsewhere)
			if name == "LD_LIBRARY_PATH" {
				r.with(t, "error cudart")
			} else {
				require.Equal(t, built(t, "sim", "libcudart.so.13"), r.with(t).Program.Cudart.Libraries[0].Path)
			}
		})
	}

	t.Run("of a library, from $ORIGIN", func(t *testing.T) {
		folder := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(folder, "lib"), 0o755))
		link := func(name, to string) {
			require.NoError(t, os.Symlink(built(t, "sim", name), filepath.Join(folder, to, name)))
		}
		link("libcudart.so.13", "lib")
		link("libcuda.so.1", "")
		middle := compile(t, "program", "libmiddle.so", append(flags, "-Wl,-rpath,$ORIGIN")...)
		copied(t, middle, filepath.Join(folder, "lib", "libmiddle.so"))
		program := compile(t, "program", "program", "-Wl,--no-as-needed,-rpath,$ORIGIN/lib", "-L"+filepath.Dir(middle),
			"-lmiddle",
			"-Wl,--allow-shlib-undefined")
		r := examine(t, []string{copied(t, program, filepath.Join(folder, "program"))},
			"LD_LIBRARY_PATH="+folder).with(t)
		require.Equal(t, filepath.Join(folder, "lib", "libcudart.so.13"), r.Program.Cudart.Libraries[0].Path)
	})

	t.Run("several versions", func(t *testing.T) {
		r := examine(t, []string{uses(t, append(flags, "-l:libcudart.so.12")...)}).with(t, "warning cudart-versions")
		require.Len(t, r.Program.Cudart.Libraries, 2)
	})
	for version, want := range map[string]string{"11.0": "warning cudart-version", "99": "error cudart-version"} {
		t.Run("version "+version, func(t *testing.T) {
			name := "libcudart.so." + version
			library := compile(t, "other", name, "-Wl,-soname,"+name)
			examine(t, []string{uses(t, library, "-Wl,-rpath,"+filepath.Dir(library))}).with(t, want)
		})
	}
}

func TestStaticRuntime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags []string
		sign  string // "": none
	}{
		"in the symbol table":       {nil, "one of its own functions"},
		"exported":                  {[]string{"-DVISIBLE=", "-rdynamic", "-s"}, "exports a cudaMalloc"},
		"stripped, with GPU code":   {[]string{"-DSEGMENT", "-s"}, "GPU code"},
		"stripped, with texts":      {[]string{"-DTEXTS", "-s"}, "texts"},
		"stripped, nothing to see ": {[]string{"-s"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := examine(t, []string{compile(t, "own", "own", c.flags...)})
			if c.sign == "" {
				require.Equal(t, "none", r.Program.Cudart.Linkage)
				return
			}
			require.Equal(t, "static", r.Program.Cudart.Linkage)
			r.says(t, "error cudart", c.sign).says(t, "error cudart", "-cudart shared").lacks(t, "program")
		})
	}

	shared := cudart(t)
	r := examine(t, []string{compile(t, "own", "own", shared...)}).with(t, "warning cudart")
	require.Equal(t, "both", r.Program.Cudart.Linkage)
	examine(t, []string{compile(t, "own", "own", append(shared, "-DVISIBLE=", "-rdynamic")...)}).with(t, "error cudart")

	library := compile(t, "own", "libown.so")
	examine(t, []string{uses(t, append(shared, library, "-Wl,-rpath,"+filepath.Dir(library))...)}).says(t,
		"note cudart-inside", "libown.so")
}

func TestProgramsThatLookForCUDA(t *testing.T) {
	t.Parallel()
	examine(t, []string{compile(t, "program", "late", "-DLATE", "-ldl")}).says(t, "note cudart", "RTLD_DEEPBIND")
	require.Equal(t, "none", examine(t, []string{plain(t)}).says(t, "note cudart", "nothing to interpose").Program.Cudart.Linkage)
}

func TestProgramsWithoutPreload(t *testing.T) {
	t.Parallel()
	examine(t, []string{plain(t, "-static")}).with(t, "error static")
	examine(t, []string{plain(t, "-static-pie")}).with(t, "error static")
	examine(t, []string{plain(t, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")}).says(t, "error libc", "musl")
	examine(t, []string{plain(t, "-Wl,--dynamic-linker=/lib64/ld-linux-none.so.2")}).with(t, "error libc")

	program := copied(t, plain(t), filepath.Join(t.TempDir(), "arm"))
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	copy(content[18:], []byte{183, 0}) // e_machine: AArch64
	executable(t, program, content)
	r := examine(t, []string{program}).with(t, "error architecture")
	require.Equal(t, "aarch64", r.Program.Machine)
	examine(t, []string{program}, "TMS_LIBRARY=").with(t, "warning library", "error architecture")
}

func TestSecureExecution(t *testing.T) {
	t.Parallel()
	program := copied(t, plain(t), filepath.Join(t.TempDir(), "plain"))
	var mount unix.Statfs_t
	require.NoError(t, unix.Statfs(program, &mount))
	ruledOut, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	require.NoError(t, err)
	if mount.Flags&unix.ST_NOSUID != 0 || ruledOut != 0 {
		t.Skip("the bits have no effect here")
	}
	const other = 65534
	if os.Chown(program, other, other) != nil {
		t.Skip("only root can make a file of another user")
	}
	require.NoError(t, os.Chmod(program, 0o755|os.ModeSetuid))
	examine(t, start(t, program, "LD_PRELOAD="+built(t, "lib", "libtms.so"))).says(t, "error loaded",
		"secure-execution mode")
}

func TestScripts(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	program := copied(t, usual(t), filepath.Join(folder, "python3.99"))
	script := func(name, text string) string {
		path := filepath.Join(folder, name)
		executable(t, path, []byte(text))
		return path
	}
	r := examine(t, []string{script("run.sh", "#!/bin/sh\nexit 0\n")}).with(t)
	require.Equal(t, "/bin/sh", r.Program.Path)
	require.Equal(t, filepath.Join(folder, "run.sh"), r.Program.Script)

	path := "PATH=" + folder + ":" + os.Getenv("PATH")
	for name, line := range map[string]string{
		"direct": "#!" + program, "env": "#!/usr/bin/env python3.99", "env -S": "#!/usr/bin/env -S A=1 python3.99 -u",
		"twice": "#!" + filepath.Join(folder, "direct"),
	} {
		if name == "twice" {
			script("direct", "#!"+program+"\n")
		}
		r := examine(t, []string{script(name, line+"\n")}, path).with(t)
		require.Equal(t, program, r.Program.Path, name)
		require.Equal(t, filepath.Join(folder, name), r.Program.Script, name)
		r.find(t, "note", "nccl-graphs")
	}
	r = examine(t, []string{"python3.99"}, path).with(t)
	require.Equal(t, program, r.Program.Path)
	require.Empty(t, r.Program.Script)
}

func TestPreloads(t *testing.T) {
	t.Parallel()
	program := usual(t)
	other, library := compile(t, "other", "libother.so"), built(t, "lib", "libtms.so")
	ask := func(preload string) report {
		// The command itself must not be preloaded with an unusable file: its loader would complain.
		return examine(t, []string{program}, "LD_PRELOAD="+preload)
	}
	r := ask(library).with(t)
	require.Equal(t, []string{library}, r.Program.Preloaded)
	ask(library+":"+other).says(t, "warning interposer", "does not see")
	ask(other+" "+library).says(t, "warning interposer", "passes on")
	ask(built(t, "sim", "libcudart.so.13")+":"+library).with(t, "error preload")
	ask(library + ":" + built(t, "sim", "libcudart.so.13")).with(t)

	driver := compile(t, "driver", "libquota.so", "-DRESULT=0")
	for _, preload := range []string{driver + ":" + library, library + ":" + driver} {
		ask(preload).says(t, "warning interposer", "libquota.so is preloaded too and defines cu")
	}
	ask(library + ":" + built(t, "sim", "libcuda.so.1")).with(t) // the driver itself needs no preload

	stdout, stderr, code := execute(t, nil, []string{"doctor", "--json", program}, "LD_PRELOAD=/nowhere/libtms.so")
	require.Contains(t, stderr, "ld.so") // its own loader's complaint
	parse(t, stdout, "", code).with(t, "warning preload")
}

// The names that clients of torch_memory_saver preload count as ours, like libtms.so itself.
func TestNamesOfTheWheel(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	library := filepath.Join(folder, "lib", "libtms.so")
	require.NoError(t, os.MkdirAll(filepath.Dir(library), 0o700))
	dropin := filepath.Join(folder, "dropin")
	require.NoError(t, os.MkdirAll(dropin, 0o700))
	copied(t, built(t, "lib", "libtms.so"), library)
	name := "torch_memory_saver_hook_mode_preload.abi3.so"
	name = copied(t, compile(t, "../../../scripts/wheel/alias", name, // as scripts/wheel.sh builds it
		"-nostdlib", `-DVARIABLES="TMS_INIT_ENABLE"`, "-Wl,--filter=$ORIGIN/../lib/libtms.so"),
		filepath.Join(dropin, name))
	other, program := compile(t, "other", "libother.so"), usual(t)

	require.Equal(t, library, examine(t, nil, "TMS_LIBRARY="+name).with(t).Library.Path)
	require.Equal(t, library, examine(t, []string{program}, "TMS_LIBRARY=", "LD_PRELOAD="+name).with(t).Library.Path)
	examine(t, []string{program}, "LD_PRELOAD="+name+":"+other).says(t, "warning interposer", "does not see")
	examine(t, []string{program}, "LD_PRELOAD="+other+":"+name).says(t, "warning interposer", "passes on")

	r := examine(t, start(t, program, "LD_PRELOAD="+name), "TMS_LIBRARY=").with(t)
	require.Equal(t, library, r.Program.Libtms)
	require.Equal(t, library, r.Library.Path)
	examine(t, start(t, program, "LD_PRELOAD="+name+":"+other)).says(t, "warning interposer", "does not see")

	require.NoError(t, os.Remove(library))
	_, stderr, code := execute(t, nil, []string{"doctor"}, "TMS_LIBRARY="+name)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, library+" is no file")
}

func TestLibraryNeedsNewerGlibc(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	versions := filepath.Join(folder, "versions")
	require.NoError(t, os.WriteFile(versions, []byte("GLIBC_9.99 { global: from_the_future; local: *; };"), 0o600))
	libc := library(t, filepath.Join(folder, "libc.so.6"), "int from_the_future(void) { return 0; }", "-nostdlib",
		"-Wl,-soname,libc.so.6,--version-script="+versions)
	needs := library(t, "libtms.so", "int from_the_future(void); int cudaMalloc(void) { return from_the_future(); }",
		"-nostdlib", libc)
	examine(t, []string{usual(t)}, "TMS_LIBRARY="+needs).says(t, "error glibc", "GLIBC_9.99")
}

func TestWrongLibrary(t *testing.T) {
	t.Parallel()
	examine(t, nil, "TMS_LIBRARY="+library(t, "libtms.so", "")).with(t, "error library")
	examine(t, nil, "TMS_LIBRARY=doctor_test.go").with(t, "error library")
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	program := usual(t)
	with := func(name string) string {
		library := compile(t, "program", name)
		return uses(t, append(cudart(t), library, "-Wl,-rpath,"+filepath.Dir(library))...)
	}
	pytorch, collective := with("libc10_cuda.so"), with("libnccl.so.2")
	for _, c := range []struct {
		program, setting string
		want             []string
	}{
		{pytorch, "PYTORCH_ALLOC_CONF=expandable_segments:True,max_split_size_mb:512", nil},
		{"", "PYTORCH_ALLOC_CONF=backend:cudaMallocAsync", []string{"warning async-backend"}},
		{pytorch, "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", []string{"error async-backend"}},
		{pytorch, "PYTORCH_CUDA_ALLOC_CONF=backend:native", nil},
		{program, "CUDA_VISIBLE_DEVICES=", []string{"error visible-devices"}},
		{program, "CUDA_VISIBLE_DEVICES=-1,0", []string{"error visible-devices"}},
		{program, "CUDA_VISIBLE_DEVICES=0", nil},
		{program, "CUDA_LAUNCH_BLOCKING=1", nil},
	} {
		arguments := []string{c.program}
		if c.program == "" {
			arguments = nil
		}
		examine(t, arguments, c.setting).with(t, c.want...)
	}

	examine(t, []string{program}).lacks(t, "nccl-graphs")
	examine(t, []string{program}, "NCCL_GRAPH_REGISTER=1").with(t).find(t, "note", "nccl-graphs")
	examine(t, []string{collective}).with(t).find(t, "note", "nccl-graphs")
	examine(t, []string{collective}, "NCCL_GRAPH_REGISTER=0").with(t).lacks(t, "nccl-graphs")
}

func TestAddressSpaceLimit(t *testing.T) {
	t.Parallel()
	r := examineUnder(t, "ulimit -v 12582912").with(t, "error address-space")
	require.EqualValues(t, 12<<30, r.Host.AddressSpaceLimitBytes)
	examineUnder(t, "ulimit -v 41943040").with(t, "warning address-space")
}

// start runs a program until the test ends, and returns once it is up.
func start(t *testing.T, program string, environment ...string) []string {
	t.Helper()
	command := exec.Command(program, "stay")
	command.Env = append([]string{"LD_LIBRARY_PATH=" + built(t, "sim")}, environment...)
	s := startProgram(t, command)
	require.Equal(t, "up", s.line())
	return []string{"--pid", s.number()}
}

func TestProcess(t *testing.T) {
	t.Parallel()
	library := built(t, "lib", "libtms.so")
	preload := "LD_PRELOAD=" + library
	program := usual(t)

	r := examine(t, start(t, program, preload), "TMS_LIBRARY=").with(t)
	require.Equal(t, program, r.Program.Path)
	require.NotZero(t, r.Program.PID)
	require.Equal(t, library, r.Program.Libtms)
	require.Equal(t, library, r.Library.Path)
	require.Equal(t, []string{library}, r.Program.Preloaded)
	require.Equal(t, "shared", r.Program.Cudart.Linkage)
	require.Equal(t, built(t, "sim", "libcudart.so.13"), r.Program.Cudart.Libraries[0].Path)
	r.find(t, "ok", "loaded")

	require.Empty(t, examine(t, start(t, program)).says(t, "error loaded", preload).Program.Libtms)
	require.Equal(t, "none", examine(t, start(t, plain(t), preload)).with(t).Program.Cudart.Linkage)
	examine(t, start(t, plain(t, "-static"), preload)).with(t, "error static")

	// The process's environment counts, not this command's.
	r = examine(t, start(t, program, preload, "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
		"CUDA_VISIBLE_DEVICES=", "NCCL_GRAPH_REGISTER=1"))
	r.with(t, "warning async-backend", "error visible-devices").find(t, "note", "nccl-graphs")
	examine(t, start(t, program, preload), "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "NCCL_GRAPH_REGISTER=1").
		with(t).lacks(t, "nccl-graphs")

	examine(t, start(t, uses(t, append(cudart(t), "-l:libcudart.so.12")...), preload)).with(t,
		"warning cudart-versions")

	link := filepath.Join(t.TempDir(), "libother.so")
	require.NoError(t, os.Symlink(compile(t, "other", "libother.so.1"), link))
	examine(t, start(t, plain(t), preload+":"+link)).with(t, "warning interposer")

	// Linked, not preloaded: the library comes behind the program's own libcudart.
	examine(t, start(t, uses(t, append(cudart(t), library, "-Wl,-rpath,"+built(t, "lib"))...))).with(t, "warning preload")
}

func TestProcessWithoutItsLibrary(t *testing.T) {
	t.Parallel()
	program := usual(t)
	library := copied(t, built(t, "lib", "libtms.so"), filepath.Join(t.TempDir(), "libtms.so"))
	process := start(t, program, "LD_PRELOAD="+library)
	examine(t, process).with(t)

	require.NoError(t, os.Rename(copied(t, built(t, "lib", "libtms.so"), library+".new"), library))
	examine(t, process).says(t, "warning replaced", "was replaced")

	require.NoError(t, os.Remove(library))
	examine(t, process).says(t, "warning replaced", "or deleted")

	process = start(t, program, "LD_PRELOAD="+library) // the loader says that there is no such file, and goes on
	examine(t, process).says(t, "error loaded", "tms doctor PROGRAM")
}
