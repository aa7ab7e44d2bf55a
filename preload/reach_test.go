package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reaching is the environment with libtms_reach.so preloaded beside libtms.so.
func reaching(t *testing.T) string {
	return "LD_PRELOAD=" + strings.Join([]string{built(t, "lib", "libtms.so"), built(t, "lib", "libtms_reach.so")}, " ")
}

func TestWaysToTheDriver(t *testing.T) {
	for _, cudart := range majors {
		program := compileWithDriver(t, "reach", cudart)
		t.Run("not asked for "+cudart, func(t *testing.T) {
			run(t, program, []string{"as it was", built(t, "sim", cudart)}).succeeded(t)
		})
		t.Run(cudart, func(t *testing.T) {
			run(t, program, []string{"reaching", built(t, "sim", cudart)}, reaching(t)).succeeded(t)
		})
	}
}

func TestStaticRuntime(t *testing.T) {
	program := filepath.Join(t.TempDir(), "static")
	sources, err := filepath.Glob("../internal/cudasim/runtime/*.c")
	require.NoError(t, err)
	arguments := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-DCUDART_MAJOR=13", "-g", "-O1", "-pthread", "-fvisibility=hidden",
		"-I../internal/cudasim", "-I../internal/cudasim/driver", "-I../vmm/digest", "-o", program, "testdata/static.c"}, sources...)
	output, err := exec.Command("cc", append(arguments, "-ldl")...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	run(t, program, nil, reaching(t)).succeeded(t)
}

// A program that has nothing to do with CUDA does not notice.
func TestOrdinaryProgramsWithReach(t *testing.T) {
	for _, command := range [][]string{{"true"}, {"bash", "-c", "echo $((6*7))"}, {"python3", "-c", "import ctypes, ssl; print(6*7)"},
		{"getent", "passwd", "root"}, {"perl", "-e", "print 6*7"}, {"gcc", "--version"}} {
		path, err := exec.LookPath(command[0])
		if err != nil {
			continue // another of them is there
		}
		plain, err := exec.Command(path, command[1:]...).Output()
		require.NoError(t, err)
		o := run(t, path, command[1:], reaching(t))
		o.succeeded(t)
		require.Equal(t, string(plain), o.stdout)
		require.Empty(t, o.stderr)
	}
}
