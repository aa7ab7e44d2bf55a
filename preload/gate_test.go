package main

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

func TestGate(t *testing.T) {
	for _, cudart := range eachMajor() {
		each(t, compileWithDriver(t, "gate", cudart), alone("basic", "inside", "captured", "busy", "callback",
			"another moment", "nested", "forked", "cancelled", "tags", "failing", "two at once", "sandboxed"),
			reaching(t), "TMS_DEBUG=invariants")
	}
}

func TestGateHoldsNotAll(t *testing.T) {
	program := compileWithDriver(t, "gate", majors[1])
	library := hermetic.Compile(t, "nvshmem_bootstrap_uid.so.3", "-shared", "-x", "c", os.DevNull)
	each(t, program, [][]string{{"exported"}, {"sandboxed", "after one"}, {"library", library}}, reaching(t))
	each(t, program, alone("exported", "lent before"), reaching(t), "TMS_SHAREABLE=1")
	each(t, program, [][]string{{"exported", "forced"}}, reaching(t), "TMS_SHAREABLE=1", "TMS_PAUSE_FORCE=1")
	// The simulator has no cuMemGetHandleForAddressRange, so a library behind libtms.so has one.
	each(t, program, [][]string{{"lent before", "by range"}}, reaching(t)+" "+shared(t, "dmabuf"))
}

func TestGateIsNotThere(t *testing.T) {
	program := compileWithDriver(t, "gate", majors[1])
	run(t, program, []string{"no gate", "start the program with tms run, or preload libtms_reach.so"}).succeeded(t)
	run(t, program, []string{"no gate", "libtms_reach.so stands before libtms.so in LD_PRELOAD"},
		"LD_PRELOAD="+built(t, "lib", "libtms_reach.so")+" "+built(t, "lib", "libtms.so")).succeeded(t)
}

func TestGateAndAnotherDriver(t *testing.T) {
	program := compile(t, "unknown", "")
	folder := filepath.Dir(hermetic.Compile(t, "libcuda.so.1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared",
		"-fPIC", "-Wl,-soname,libcuda.so.1", "testdata/otherdriver.c"))
	plugin := hermetic.Compile(t, "newer.so", "-shared", "-fPIC", "testdata/newer.c", "-L"+folder, "-l:libcuda.so.1")
	each(t, program, [][]string{{"name"}, {"dlsym"}, {"bound", plugin}}, reaching(t), "LD_LIBRARY_PATH="+folder)
}

// TMS_GATE_PAUSES says how many pauses; scripts/soak.sh sets it.
func TestGateStorm(t *testing.T) {
	pauses := cmp.Or(os.Getenv("TMS_GATE_PAUSES"), strconv.Itoa(often(300, 60)))
	program := compileWithDriver(t, "gatestorm", majors[1])
	o := runWithin(t, 2*time.Hour, program, []string{pauses, os.Getenv("TMS_GATE_SEED")}, reaching(t)).succeeded(t)
	require.Empty(t, o.findings)
	t.Log(o.stdout)
}
