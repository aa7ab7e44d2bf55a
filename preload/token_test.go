package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// Memory that a program made itself, used in other processes as by PyTorch's symmetric memory: testdata/symmetric.c.
func TestSymmetricMemory(t *testing.T) {
	hermetic.Thorough(t)
	for _, cudart := range eachMajor() {
		t.Run(cudart, func(t *testing.T) {
			together(t, compile(t, "symmetric", cudart), []string{"mutual", "taken", "moved", "freed", "killed",
				"importer_dies", "while_paused", "devices", "refused"}, "TMS_SHAREABLE=1", "CUDASIM_DEVICES=2")
		})
	}
	program := compile(t, "symmetric", majors[1])
	together(t, program, []string{"gated", "held_up"}, reaching(t), "TMS_SHAREABLE=1")
	o := run(t, program, []string{"multicast"}, "TMS_SHAREABLE=1", "TMS_DEBUG=invariants").succeeded(t)
	require.Contains(t, o.stderr, "TORCH_SYMM_MEM_DISABLE_MULTICAST=1")
}
