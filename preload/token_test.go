package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Memory that a program made itself, used in other processes as by PyTorch's symmetric memory: testdata/symmetric.c.
func TestSymmetricMemory(t *testing.T) {
	for _, cudart := range eachMajor() {
		program := compile(t, "symmetric", cudart)
		for _, what := range []string{"mutual", "taken", "moved", "freed", "killed", "importer_dies", "while_paused", "devices", "refused"} {
			t.Run(what+" "+cudart, func(t *testing.T) {
				sockets(t)
				run(t, program, []string{what}, "TMS_SHAREABLE=1", "TMS_DEBUG=invariants", "CUDASIM_DEVICES=2",
					fmt.Sprint("CUDASIM_SHARED=symmetric-", os.Getpid(), "-", what)).succeeded(t)
			})
		}
	}
	program := compile(t, "symmetric", majors[1])
	run(t, program, []string{"gated"}, reaching(t), "TMS_SHAREABLE=1", "TMS_DEBUG=invariants").succeeded(t)
	t.Run("held_up", func(t *testing.T) {
		sockets(t)
		run(t, program, []string{"held_up"}, reaching(t), "TMS_SHAREABLE=1", "TMS_DEBUG=invariants",
			fmt.Sprint("CUDASIM_SHARED=symmetric-", os.Getpid())).succeeded(t)
	})
	o := run(t, program, []string{"multicast"}, "TMS_SHAREABLE=1", "TMS_DEBUG=invariants")
	o.succeeded(t)
	require.Contains(t, o.stderr, "TORCH_SYMM_MEM_DISABLE_MULTICAST=1")
}
