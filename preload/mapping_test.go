package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMappingByTheProgram(t *testing.T) {
	for _, cudart := range majors {
		run(t, compile(t, "expandable", cudart), nil, "TMS_EXTENT_BYTES=1073741824").succeeded(t)
	}
}

func TestExportedSegments(t *testing.T) {
	program := compile(t, "export", majors[1])
	run(t, program, []string{"shareable"}, "TMS_SHAREABLE=1").succeeded(t)
	run(t, program, []string{"private"}).succeeded(t)
}

func TestExcluded(t *testing.T) {
	library := filepath.Join(t.TempDir(), "libkeeper.so.1")
	output, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", library,
		filepath.Join("testdata", "keeper.c")).CombinedOutput()
	require.NoError(t, err, "%s", output)
	program := compile(t, "excluded", majors[1])
	for list, listed := range map[string]string{
		"":                              "free",
		"libother.so:libkeep.so":        "free",
		"libkeeper.so.1":                "listed",
		"libother.so.2:libkeeper.so":    "listed",
		"::libkeeper.so.1:libother.so:": "listed",
		"libkeeper.so.2":                "free",
	} {
		run(t, program, []string{library, listed}, "TMS_EXCLUDE="+list).succeeded(t)
	}
}
