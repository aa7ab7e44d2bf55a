package main

import (
	"fmt"
	"os"
	"testing"
)

// Two processes that share memory by CUDA's handles: testdata/ipc.c.
func TestMemoryOfOtherProcesses(t *testing.T) {
	for _, cudart := range eachMajor() {
		program := compileWithDriver(t, "ipc", cudart)
		for _, what := range []string{"mutual", "lone", "freed", "killed", "importer_dies", "alone"} {
			t.Run(what+" "+cudart, func(t *testing.T) {
				sockets(t)
				o := run(t, program, []string{what}, "TMS_DEBUG=invariants", fmt.Sprint("CUDASIM_SHARED=ipc-", os.Getpid(), "-", what))
				o.succeeded(t)
			})
		}
	}
	run(t, compileWithDriver(t, "ipc", majors[1]), []string{"not shared"}, "TMS_SHAREABLE=0").succeeded(t)
}
