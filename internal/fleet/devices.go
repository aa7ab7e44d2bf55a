package fleet

import (
	"fmt"
	"slices"
	"strings"

	"tms/internal/machine/nvml"
)

// Device is whose memory is on a GPU, in bytes. The rest of Total is the driver's own.
type Device struct {
	Label              string
	Total              uint64
	Ours, Others, Free uint64 // of processes that listen; of everything else; in use by nothing
}

// Devices returns whose memory is on each device. Ours is what NVML says about our processes, or where it does not,
// what they say.
func Devices(processes []Process, gpus []nvml.Device) (devices []Device) {
	processes = slices.Clone(processes)
	for i := range processes {
		processes[i].Error = "" // NVML knows a process that does not answer, too
	}
	Measure(processes, gpus)
	ours := func(uuid string) (bytes uint64) {
		for _, p := range processes {
			for _, d := range p.Bytes {
				if d.UUID == uuid {
					bytes += max(d.UsedBytes, d.NamedBytes)
				}
			}
		}
		return bytes
	}
	for _, d := range gpus {
		one := Device{Label: fmt.Sprint(d.Index, " ", strings.TrimPrefix(d.Name, "NVIDIA ")), Total: d.TotalBytes,
			Free: d.FreeBytes}
		one.Ours = min(ours(d.UUID), d.UsedBytes)
		one.Others = d.UsedBytes - one.Ours
		devices = append(devices, one)
	}
	if len(gpus) == 0 {
		devices = asSeen(processes, ours)
	}
	return devices
}

// asSeen returns the devices as the processes see them.
func asSeen(processes []Process, ours func(uuid string) uint64) (devices []Device) {
	var known []string
	for _, p := range processes {
		for _, d := range p.Stats.Devices {
			i := slices.Index(known, d.UUID)
			if i < 0 {
				i = len(known)
				known = append(known, d.UUID)
				devices = append(devices, Device{Label: strings.TrimSpace(fmt.Sprint("dev ", d.Device, " ", d.UUID)), Total: d.TotalBytes})
			}
			if !p.Stats.Everything { // else the driver was not asked
				devices[i].Free = d.FreeBytes
			}
		}
	}
	for i := range devices {
		d := &devices[i]
		d.Free = min(d.Free, d.Total)
		d.Ours = min(ours(known[i]), d.Total-d.Free)
		d.Others = d.Total - d.Free - d.Ours
	}
	return devices
}
