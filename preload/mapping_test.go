package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

func TestMappingByTheProgram(t *testing.T) {
	for _, cudart := range eachMajor() {
		run(t, compile(t, "expandable", cudart), nil, "TMS_EXTENT_BYTES=1073741824").succeeded(t)
	}
}

func TestExportedSegments(t *testing.T) {
	program := compile(t, "export", majors[1])
	each(t, program, alone("shareable"), "TMS_SHAREABLE=1")
	each(t, program, alone("private"))
	each(t, program, alone("private"), "TMS_SHAREABLE=0")
}

func TestExcluded(t *testing.T) {
	program, folder := compile(t, "excluded", majors[1]), t.TempDir()
	for _, file := range []string{"libkeeper.so.1", "libkeeper-1f2e3d4c.so.1.0.0"} {
		made := hermetic.Compile(t, file, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "testdata/keeper.c")
		require.NoError(t, os.Symlink(made, filepath.Join(folder, file)))
	}
	for _, c := range []struct{ file, list, listed string }{
		{"libkeeper.so.1", "", "free"},
		{"libkeeper.so.1", "libother.so:libkeep.so", "free"},
		{"libkeeper.so.1", "libkeeper.so.1", "listed"},
		{"libkeeper.so.1", "libother.so.2:libkeeper.so", "listed"},
		{"libkeeper.so.1", "::libkeeper.so.1:libother.so:", "listed"},
		{"libkeeper.so.1", "libkeeper:libother.so", "listed"},
		{"libkeeper.so.1", "libkeeper.so.2", "free"},
		{"libkeeper.so.1", "libkeeper-1f2e3d4c.so", "free"},
		// The name that auditwheel gives it.
		{"libkeeper-1f2e3d4c.so.1.0.0", "libother.so:libkeeper.so", "listed"},
		{"libkeeper-1f2e3d4c.so.1.0.0", "libkeeper-1f2e3d4c.so", "listed"},
		{"libkeeper-1f2e3d4c.so.1.0.0", "libkeeper-2f2e3d4c.so", "free"},
		{"libkeeper-1f2e3d4c.so.1.0.0", "libkeeper.so.2:libkeep.so", "free"},
	} {
		each(t, program, [][]string{{filepath.Join(folder, c.file), c.listed}}, "TMS_EXCLUDE="+c.list)
	}
}
