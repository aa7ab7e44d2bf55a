package main

import (
	"path/filepath"
	"testing"

	"tms/internal/aid/hermetic"
)

// buildRDMA builds the tests' libibverbs, which is libcufile and libgdrapi, too.
func buildRDMA(t *testing.T, number string) string {
	t.Helper()
	return hermetic.Compile(t, "libibverbs.so.1", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=testdata/libibverbs.map", "-DCOPY="+number,
		"testdata/libibverbs.c",
		"-L"+built(t, "sim"), "-l:libcudart.so.13")
}

// What a network card, a file system or the processor reaches without CUDA is not paused, however the program finds the
// functions that register it.
func TestMemoryThatIsRegisteredElsewhere(t *testing.T) {
	one, other := buildRDMA(t, "1"), buildRDMA(t, "2")
	program := compile(t, "rdma", majors[1])
	each(t, program, [][]string{{"dlsym", one}, {"dlvsym", one}, {"dlvsym", one, other}}, reaching(t))
	linked := compile(t, "rdma", majors[1], "-DLINKED", "-L"+filepath.Dir(one), "-Wl,-rpath,"+filepath.Dir(one),
		"-l:libibverbs.so.1")
	each(t, linked, [][]string{{"linked"}}, reaching(t))
}
