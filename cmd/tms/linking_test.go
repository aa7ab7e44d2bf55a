package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// A program that is linked as each of these says is pausable, and starts without a preload and without LD_LIBRARY_PATH
// for libtms.so. In front of libcudart all linkers keep libcudart; by CMake the order does not matter.
func TestLinking(t *testing.T) {
	lib, sim, example := built(t, "lib"), built(t, "sim"), built(t, "..", "docs", "examples", "linked.c")
	t.Setenv("TMS_LIBRARY", filepath.Join(lib, "libtms.so"))
	works := func(t *testing.T, program string) {
		t.Helper()
		c := exec.Command(program)
		c.Env = append(os.Environ(), "LD_PRELOAD=", "LD_LIBRARY_PATH="+sim)
		stdout, stderr, code := ran(t, c)
		require.Zero(t, code, stderr)
		require.Equal(t, "64 MiB are free for others\nthe last byte is 42\n", stdout)
		require.Empty(t, stderr)
	}
	link := func(t *testing.T, compiled, linked string) string {
		t.Helper()
		flags := append([]string{"-Wl,--as-needed", example}, strings.Fields(compiled)...)
		return hermetic.Compile(t, "linked", append(append(flags, strings.Fields(linked)...), "-L"+sim, "-lcudart")...)
	}
	t.Run("tms", func(t *testing.T) {
		compiled, linked := succeeds(t, "--cflags"), succeeds(t, "--libs")
		require.Equal(t, strings.TrimSpace(compiled)+" "+linked, succeeds(t, "--libs", "--cflags"))
		works(t, link(t, compiled, linked))
	})
	t.Run("pkg-config", func(t *testing.T) {
		config := hermetic.Program(t, "pkg-config")
		for _, name := range []string{"tms", "libtms"} {
			said := func(flag string) string {
				c := exec.Command(config, flag, name)
				c.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(lib, "pkgconfig"))
				stdout, stderr, code := ran(t, c)
				require.Zero(t, code, stderr)
				return strings.TrimSpace(strings.ReplaceAll(stdout, "/pkgconfig/..", ""))
			}
			require.Equal(t, strings.TrimSpace(succeeds(t, "--cflags")), said("--cflags"))
			require.Equal(t, strings.TrimSpace(succeeds(t, "--libs")), said("--libs"))
			require.Equal(t, version, said("--modversion"))
			works(t, link(t, said("--cflags"), said("--libs")))
		}
	})
	t.Run("CMake", func(t *testing.T) {
		hermetic.Thorough(t)
		cmake, folder := hermetic.Program(t, "cmake"), t.TempDir()
		for order, libraries := range map[string]string{"first": "tms::tms cudart", "last": "cudart tms::tms"} {
			source, build := filepath.Join(folder, order), filepath.Join(folder, order, "build")
			require.NoError(t, os.Mkdir(source, 0o700))
			text := "cmake_minimum_required(VERSION 3.13)\nproject(example C)\nfind_package(tms " + version + " REQUIRED)\n" +
				"add_executable(example " + example + ")\ntarget_link_directories(example PRIVATE " + sim + ")\n" +
				"target_link_libraries(example PRIVATE " + libraries + ")\n"
			require.NoError(t, os.WriteFile(filepath.Join(source, "CMakeLists.txt"), []byte(text), 0o600))
			for _, arguments := range [][]string{
				{"-S", source, "-B", build, "-DCMAKE_PREFIX_PATH=" + filepath.Dir(lib)}, {"--build", build},
			} {
				stdout, stderr, code := ran(t, exec.Command(cmake, arguments...))
				require.Zero(t, code, stdout+stderr)
			}
			works(t, filepath.Join(build, "example"))
		}
	})
	t.Run("without tms.h", func(t *testing.T) {
		alone := filepath.Join(t.TempDir(), "libtms.so")
		require.NoError(t, os.WriteFile(alone, nil, 0o600))
		t.Setenv("TMS_LIBRARY", alone)
		fails(t, exitNo, "tms.h is not there", "--cflags")
	})
}
