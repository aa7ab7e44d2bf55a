package main

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/hermetic"
)

func TestGate(t *testing.T) {
	for _, cudart := range eachMajor() {
		program := compileWithDriver(t, "gate", cudart)
		for _, part := range []string{"basic", "inside", "captured", "busy", "callback", "another moment", "nested", "forked", "cancelled",
			"tags", "failing", "two at once", "sandboxed"} {
			t.Run(part+" "+cudart, func(t *testing.T) {
				t.Parallel() // they mostly wait
				run(t, program, []string{part}, reaching(t), "TMS_DEBUG=invariants").succeeded(t)
			})
		}
	}
}

func TestGateHoldsNotAll(t *testing.T) {
	program := compileWithDriver(t, "gate", majors[1])
	run(t, program, []string{"exported"}, reaching(t)).succeeded(t)
	run(t, program, []string{"exported"}, reaching(t), "TMS_SHAREABLE=1").succeeded(t)
	run(t, program, []string{"exported", "forced"}, reaching(t), "TMS_SHAREABLE=1", "TMS_PAUSE_FORCE=1").succeeded(t)

	// The simulator has no cuMemGetHandleForAddressRange; a library behind ours has one.
	run(t, program, []string{"lent before"}, reaching(t), "TMS_SHAREABLE=1").succeeded(t)
	run(t, program, []string{"lent before", "by range"}, reaching(t)+" "+shared(t, "dmabuf")).succeeded(t)

	run(t, program, []string{"sandboxed", "after one"}, reaching(t)).succeeded(t)

	library := hermetic.Compile(t, "nvshmem_bootstrap_uid.so.3", "-shared", "-x", "c", os.DevNull)
	run(t, program, []string{"library", library}, reaching(t)).succeeded(t)
}

func TestGateIsNotThere(t *testing.T) {
	program := compileWithDriver(t, "gate", majors[1])
	run(t, program, []string{"no gate", "start the program with tms run, or preload libtms_reach.so"}).succeeded(t)
	run(t, program, []string{"no gate", "libtms_reach.so stands before libtms.so in LD_PRELOAD"},
		"LD_PRELOAD="+built(t, "lib", "libtms_reach.so")+" "+built(t, "lib", "libtms.so")).succeeded(t)
}

func TestGateAndAnotherDriver(t *testing.T) {
	program := compile(t, "unknown", "")
	folder := filepath.Dir(hermetic.Compile(t, "libcuda.so.1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-Wl,-soname,libcuda.so.1", "testdata/otherdriver.c"))
	plugin := hermetic.Compile(t, "newer.so", "-shared", "-fPIC", "testdata/newer.c", "-L"+folder, "-l:libcuda.so.1")
	for _, arguments := range [][]string{{"name"}, {"dlsym"}, {"bound", plugin}} {
		t.Run(arguments[0], func(t *testing.T) { run(t, program, arguments, reaching(t), "LD_LIBRARY_PATH="+folder).succeeded(t) })
	}
}

// TMS_GATE_PAUSES says how many pauses; scripts/soak.sh sets it.
func TestGateStorm(t *testing.T) {
	pauses := cmp.Or(os.Getenv("TMS_GATE_PAUSES"), strconv.Itoa(often(300, 60)))
	program := compileWithDriver(t, "gatestorm", majors[1])
	o := runWithin(t, 2*time.Hour, program, []string{pauses, os.Getenv("TMS_GATE_SEED")}, reaching(t))
	o.succeeded(t)
	require.Empty(t, o.findings)
	t.Log(o.stdout)
}
