package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"tms/internal/doctor"
)

// startedBy is the Python that became this command as python -m tms, or "". A program that this command starts does not
// inherit the variable.
var startedBy = takeVariable("_TMS_PYTHON")

func takeVariable(name string) string {
	value := os.Getenv(name)
	os.Unsetenv(name)
	return value
}

var sitePackages = regexp.MustCompile(`/(python3(?:\.\d+)?)/[^/]+-packages/tms/lib/libtms\.so$`)

// python returns the Python into which this command was installed: the one that became this command, the one beside it,
// or the one on PATH in whose site-packages libtms.so lies. It returns "" for a command that was not installed.
func python() string {
	if startedBy != "" {
		return startedBy
	}
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	for _, name := range []string{"python", "python3"} {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return path
		}
	}
	if library, err := installedLibrary(); err == nil {
		if version := sitePackages.FindStringSubmatch(library); version != nil {
			path, _ := exec.LookPath(version[1])
			return path
		}
	}
	return ""
}

// findDropin asks Python whose package it imports as torch_memory_saver, as tms._dropin tells it.
const findDropin = `import sys
sys.path[:] = [path for path in sys.path if path]  # without the current folder
from tms import _dropin
print(_dropin.finding())`

// dropinFinding returns what Python says of torch_memory_saver, or nil if it says nothing.
func dropinFinding() *doctor.Finding {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	asked := exec.CommandContext(ctx, python(), "-c", findDropin)
	asked.Env = []string{"PYTHONDONTWRITEBYTECODE=1"}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "LD_PRELOAD=") {
			asked.Env = append(asked.Env, entry)
		}
	}
	answer, err := asked.Output()
	found := new(doctor.Finding)
	if err != nil || json.Unmarshal(answer, found) != nil {
		return nil
	}
	return found
}
