package fleet

import (
	"cmp"
	"os"
	"slices"

	"tms/internal/control"
	"tms/internal/machine/nvml"
	"tms/vmm/stats"
)

// DeviceBytes is what one process has on one device, by name.
type DeviceBytes struct {
	Device int    `json:"device"` // the process's number of it, or -1 if the process has not named it
	UUID   string `json:"uuid"`
	GPU    *int   `json:"gpu,omitempty"` // as of stats.Device
	Name   string `json:"name"`          // the GPU's, or "" if NVML does not show it
	// UsedBytes is everything that the process has there, according to Source; 0 without one.
	UsedBytes uint64 `json:"used_bytes"`
	Source    string `json:"source"` // one of the below
	// Parts is what was allocated, by whom, and NamedBytes is the sum. RestBytes is the part of UsedBytes in none of
	// them: contexts, modules, local memory, and what was not counted.
	Parts      []Part `json:"parts"`
	NamedBytes uint64 `json:"named_bytes"`
	RestBytes  uint64 `json:"rest_bytes"`
}

// Where UsedBytes is from.
const (
	FromNVML   = "nvml"   // its figure for the process
	FromAlone  = "alone"  // its figure for the only process there, which it knows under another number
	FromDevice = "device" // the device's used bytes, where it shows no process and tms knows only this one
	Unmeasured = ""       // there is none
)

// The kinds of parts besides control's.
const (
	KindTag   = "tag"
	KindPools = "pools"
	KindPeers = "peer backup"
)

// Part has a name. Sizes count device memory.
type Part struct {
	Name  string     `json:"name"`
	Kind  string     `json:"kind"`
	Bytes uint64     `json:"bytes"`
	Count uint64     `json:"count,omitempty"` // of allocations or pools
	Tag   *stats.Tag `json:"-"`               // of a tag
}

// PartsOf returns what a process says that it has, by device.
func PartsOf(state control.ProcessState) (found []DeviceBytes) {
	at := func(device int, uuid string) *DeviceBytes {
		i := slices.IndexFunc(found, func(d DeviceBytes) bool { return d.Device == device })
		if i < 0 {
			i = len(found)
			found = append(found, DeviceBytes{Device: device, Parts: []Part{}})
		}
		found[i].UUID = cmp.Or(found[i].UUID, uuid)
		return &found[i]
	}
	for _, d := range state.Devices {
		at(d.Device, d.UUID)
	}
	for _, d := range state.Stats.Devices {
		on := at(d.Device, d.UUID)
		for _, tag := range d.Tags {
			on.add(Part{Name: tag.Tag, Kind: KindTag, Bytes: tag.PhysicalBytes, Tag: &tag})
		}
		if d.PoolBytes > 0 {
			on.add(Part{Name: "pools over cudaMalloc", Kind: KindPools, Bytes: d.PoolBytes})
		}
		if d.BackupBytes > 0 {
			on.add(Part{Name: "contents of other devices", Kind: KindPeers, Bytes: d.BackupBytes})
		}
	}
	if state.Account != nil {
		for _, o := range state.Account.Others {
			on := at(o.Device, "")
			on.add(Part{Name: o.Library, Kind: o.Kind, Bytes: o.Bytes, Count: o.Count})
		}
	}
	for i := range found {
		slices.SortStableFunc(found[i].Parts, func(x, y Part) int { return cmp.Compare(y.Bytes, x.Bytes) })
	}
	slices.SortFunc(found, func(x, y DeviceBytes) int { return cmp.Compare(x.Device, y.Device) })
	return found
}

func (d *DeviceBytes) add(p Part) {
	d.Parts = append(d.Parts, p)
	d.NamedBytes += p.Bytes
}

// SameNumbers reports whether the driver knows processes by the numbers that they have here: whether this is the
// initial PID namespace. (PROC_PID_INIT_INO of Linux)
func SameNumbers() bool {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	return namespace == "pid:[4026531836]"
}

// Measure notes how much each process has in all on each of its devices, according to what NVML shows of the GPUs, and
// which GPUs those are.
func Measure(processes []Process, gpus []nvml.Device) {
	same := SameNumbers()
	ours := map[string]int{} // how many of the processes are on a device
	for i := range processes {
		processes[i].Bytes = PartsOf(processes[i].ProcessState)
		for _, d := range processes[i].Bytes {
			ours[d.UUID]++
		}
	}
	for i := range processes {
		p := &processes[i]
		for _, gpu := range gpus {
			at := slices.IndexFunc(p.Bytes, func(d DeviceBytes) bool { return d.UUID == gpu.UUID })
			_, used := UsedBy(p.Here, gpu)
			if at < 0 && same && p.Error == "" && used {
				at = len(p.Bytes)
				p.Bytes = append(p.Bytes, DeviceBytes{Device: -1, UUID: gpu.UUID, Parts: []Part{}})
			}
			if at < 0 {
				continue
			}
			p.Bytes[at].Name = gpu.Name
			if same || !p.Stats.Everything { // else it has left the GPU, and what NVML shows there is another process's
				p.Bytes[at].measure(gpu, p.Here, ours[gpu.UUID] == 1, same)
			}
		}
	}
	Number(processes, gpus)
}

// UsedBy returns how much NVML says that a process has on a GPU, and whether NVML has a figure.
func UsedBy(pid int, gpu nvml.Device) (bytes uint64, known bool) {
	for _, p := range gpu.Processes {
		if p.PID == pid && p.Known {
			bytes, known = bytes+p.UsedBytes, true // on each part of the GPU
		}
	}
	return bytes, known
}

// measure takes the process's figure. alone says that tms knows no other process on the GPU, same that NVML and tms
// know processes by the same numbers. Without same, the number may belong to another process. A figure that is smaller
// than the bytes that the process names gives such a mistake away.
func (d *DeviceBytes) measure(gpu nvml.Device, pid int, alone, same bool) {
	used, known := UsedBy(pid, gpu)
	switch {
	case known:
		d.UsedBytes, d.Source = used, FromNVML
	case len(gpu.Processes) == 1 && gpu.Processes[0].Known && alone && !same:
		d.UsedBytes, d.Source = gpu.Processes[0].UsedBytes, FromAlone
	case len(gpu.Processes) == 0 && alone && !same:
		d.UsedBytes, d.Source = gpu.UsedBytes, FromDevice
	}
	if !same && d.UsedBytes < d.NamedBytes {
		d.UsedBytes, d.Source = 0, Unmeasured
	}
	d.RestBytes = d.UsedBytes - min(d.UsedBytes, d.NamedBytes)
}
