package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// reaching returns the environment with libtms_reach.so preloaded beside libtms.so.
func reaching(t *testing.T) string {
	return "LD_PRELOAD=" + strings.Join([]string{built(t, "lib", "libtms.so"), built(t, "lib", "libtms_reach.so")}, " ")
}

func TestWaysToTheDriver(t *testing.T) {
	for _, cudart := range majors {
		program := compileWithDriver(t, "reach", cudart)
		each(t, program, [][]string{{"as it was", built(t, "sim", cudart)}})
		each(t, program, [][]string{{"reaching", built(t, "sim", cudart)}}, reaching(t))
	}
}

// static compiles a program with the runtime in it, as a static libcudart is.
func static(t *testing.T, name string) string {
	t.Helper()
	sources, err := filepath.Glob("../internal/cudasim/runtime/*.c")
	require.NoError(t, err)
	arguments := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-DCUDART_MAJOR=13", "-O1", "-pthread",
		"-fvisibility=hidden", "-I../internal/cudasim", "-I../internal/cudasim/driver", "-I../vmm/digest",
		"testdata/" + name + ".c"}, sources...)
	return hermetic.Compile(t, name, append(arguments, "-Wl,-z,dynamic-undefined-weak", "-ldl")...)
}

func TestStaticRuntime(t *testing.T) {
	run(t, static(t, "static"), nil, reaching(t)).succeeded(t)
}

// A program that looks at the last error alone learns of the library's failures.
func TestLastError(t *testing.T) {
	for _, cudart := range majors {
		program := compile(t, "lasterror", cudart)
		for _, preload := range []string{"LD_PRELOAD=" + built(t, "lib", "libtms.so"), reaching(t)} {
			run(t, program, nil, preload).succeeded(t)
		}
	}
	run(t, static(t, "lasterror"), nil, reaching(t)).succeeded(t)
}

// ordinary are commands that have nothing to do with CUDA, whose output is the same each time. Most hosts have most.
const ordinary = `
true
bash -c "echo $((6*7)) | cat"
sh -c "trap 'echo term' TERM; kill -TERM $$"
python3 -c "import ctypes, ssl, sqlite3, hashlib; print(ctypes.CDLL(None).abs(-42), hashlib.md5(b'a').hexdigest())"
python3 -c "import multiprocessing as m; print(m.get_context('spawn').Pool(2).map(abs, [-1, -2]))"
perl -MPOSIX -e "print POSIX::floor(42.5)"
getent passwd root
getent hosts localhost
id -u
cc -dumpmachine
gdb --batch -ex "print 6*7"
git config --list --show-origin --global --includes
go version
node -e "console.log(6*7)"
awk "BEGIN { print 42 }"
bzip2 --help
openssl version
locale -a
date -u -d @0
env -i true
nice true
timeout 5 true
setsid true
dc -e "6 7 * p"
sqlite3 :memory: "select 42"
ruby -e "puts 42"
php -r "echo 42;"
lua -e "print(42)"
tclsh /dev/null
`

// versions print theirs, by the options that follow.
var versions = map[string]string{
	"--version": `gcc g++ ld as objdump readelf nm make git sed grep find sort tar gzip xz zstd curl wget ldd
		ldconfig unshare mount lsblk ps dpkg apt-get rpm file diff patch bc vim redis-server`,
	"-version": "java javac",
	"-V":       "strace ssh ip tmux",
	"-v":       "top nginx",
}

// A program that has nothing to do with CUDA notices nothing, nor, with TMS_NO_INHERIT, do its children.
func TestOrdinaryPrograms(t *testing.T) {
	commands := strings.Split(strings.TrimSpace(ordinary), "\n")
	for option, names := range versions {
		for name := range strings.FieldsSeq(names) {
			commands = append(commands, name+" "+option)
		}
	}
	tried := 0
	for _, command := range commands {
		if _, err := exec.LookPath(strings.Fields(command)[0]); err != nil {
			continue
		}
		tried++
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			expected, err := exec.Command("bash", "-c", command+" 2>&1").CombinedOutput()
			for _, more := range []string{"TMS_INIT_ENABLE=1", "TMS_NO_INHERIT=1"} {
				o := run(t, "/bin/bash", []string{"-c", command + " 2>&1"}, reaching(t), more)
				require.Equal(t, string(expected), o.stdout)
				require.Empty(t, o.stderr)
				require.Equal(t, err == nil, o.state.Success())
			}
		})
	}
	require.Greater(t, tried, 30)
}

// What the host sees of the environment, and hands on, in its order.
func TestEnvironmentIsLeft(t *testing.T) {
	if sanitized {
		t.Skip("a sanitizer is in LD_PRELOAD too")
	}
	program := compile(t, "inherited", "")
	ours := built(t, "lib", "libtms.so") + ":" + built(t, "lib", "libtms_reach.so")
	for _, c := range []struct {
		environment []string
		want        string
	}{
		{[]string{"TMS_NO_INHERIT=0", "LD_PRELOAD=" + ours}, "TMS_NO_INHERIT=0\nLD_PRELOAD=" + ours + "\n"},
		{[]string{"TMS_NO_INHERIT=1", "LD_PRELOAD=" + ours, "TMS_INIT_ENABLE=1", "TMS_UNKNOWN=1"}, ""},
		{[]string{"TMS_NO_INHERIT=1", "X=1", "LD_PRELOAD=" + strings.Replace(ours, ":", " libc.so.6 ", 1), "Y=2"},
			"X=1\nLD_PRELOAD=libc.so.6 \nY=2\n"},
		{[]string{"TMS_NO_INHERIT=1", "LD_PRELOAD=libc.so.6:" + ours + ":libm.so.6"},
			"LD_PRELOAD=libc.so.6:libm.so.6\n"},
	} {
		o := run(t, program, nil, c.environment...).succeeded(t)
		about := regexp.MustCompile(`(?m)^(TMS_|LD_PRELOAD=|[A-Z]=).*\n`)
		require.Equal(t, c.want, strings.Join(about.FindAllString(o.stdout, -1), ""), "%v", c.environment)
		require.Empty(t, o.stderr)
	}
}
