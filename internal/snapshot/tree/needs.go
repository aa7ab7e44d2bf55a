package tree

import (
	"fmt"
	"runtime"
	"slices"

	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/machine/nvml"
	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// needs says what a restore of the group needs. Without NVML it says nothing of GPUs.
func needs(g *group.Group, program *criu.Program) snapshot.Needs {
	n := snapshot.Needs{Kernel: criu.Kernel(), CRIU: program.Version, Machine: runtime.GOARCH}
	library, err := fleet.NVML()
	if err != nil {
		return n
	}
	n.Driver, _ = library.DriverVersion()
	used := g.UUIDs()
	shown, _ := library.Memory()
	for _, gpu := range shown {
		if slices.Contains(used, gpu.UUID) {
			n.GPUs = append(n.GPUs, snapshot.GPU{Model: gpu.Name, UUID: gpu.UUID, Memory: gpu.TotalBytes})
		}
	}
	return n
}

// hasGPUs refuses a machine whose driver is another one, or that lacks a GPU of the snapshot. The driver keeps its part
// of a process in a form of its own, and restores it to the same GPU unless it is given pairs of GPUs.
// (cuCheckpointProcessRestore)
func hasGPUs(n snapshot.Needs, elsewhere bool) error {
	if n.Driver == "" {
		return nil
	}
	library, err := fleet.NVML()
	if err != nil {
		return fmt.Errorf("the snapshot needs NVIDIA's driver %s: %w", n.Driver, err)
	}
	version, err := library.DriverVersion()
	if err != nil {
		return fmt.Errorf("asking NVML for the driver's version: %w", err)
	}
	here, err := library.Memory()
	if err != nil && len(here) == 0 {
		return fmt.Errorf("asking NVML for the GPUs: %w", err)
	}
	if elsewhere {
		n.GPUs = nil // group.Pairs looks for them
	}
	return lacks(n, version, here)
}

// lacks says what a machine with this driver and these GPUs lacks.
func lacks(n snapshot.Needs, version string, here []nvml.Device) error {
	if version != n.Driver {
		return fmt.Errorf("the snapshot was taken with NVIDIA's driver %s, and this machine has %s. Only the same version can "+
			"restore the driver's part: take a new snapshot here", n.Driver, version)
	}
	for _, gpu := range n.GPUs {
		if !slices.ContainsFunc(here, func(d nvml.Device) bool { return d.UUID == gpu.UUID }) {
			return fmt.Errorf("the snapshot needs the %s %s, which is not here: name another GPU of this model by --to",
				gpu.Model, gpu.UUID)
		}
	}
	return nil
}
