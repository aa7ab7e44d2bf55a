package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/machine/nvml"
	"tms/vmm/stats"
)

// A GPU has three names: NVML's number of it, which nvidia-smi shows too; its UUID; and the number that a program has
// for it, which CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, a container or a move makes another one. tms names a GPU by
// NVML's number and the UUID, and the program's device second.

const numberTime = 10 * time.Second // for NVML's answer, which is late on a busy machine

// shown is NVML's answer, which is asked for once and is complete when done is closed.
var shown struct {
	ask  sync.Once
	gpus []nvml.Device
	done chan struct{}
}

// Shown returns the GPUs that NVML shows, or none where NVML is missing or late.
func Shown() []nvml.Device {
	shown.ask.Do(func() {
		shown.done = make(chan struct{})
		go func() {
			defer close(shown.done)
			if library, err := NVML(); err == nil {
				shown.gpus, _ = library.Memory()
			}
		}()
	})
	select {
	case <-shown.done:
		return shown.gpus
	case <-time.After(numberTime):
		return nil
	}
}

// NumberOf returns NVML's number of a GPU, or nil if NVML does not show it.
func NumberOf(uuid string, gpus []nvml.Device) *int {
	at := slices.IndexFunc(gpus, func(gpu nvml.Device) bool { return gpu.UUID == uuid })
	if at < 0 || uuid == "" {
		return nil
	}
	return &gpus[at].Index
}

// Number notes which GPU each device of the processes is now.
func Number(processes []Process, gpus []nvml.Device) {
	for i := range processes {
		p := &processes[i]
		for at := range p.Devices {
			p.Devices[at].GPU = NumberOf(p.Devices[at].UUID, gpus)
		}
		for at := range p.Stats.Devices {
			p.Stats.Devices[at].GPU = NumberOf(p.Stats.Devices[at].UUID, gpus)
		}
		for at := range p.Bytes {
			p.Bytes[at].GPU = NumberOf(p.Bytes[at].UUID, gpus)
		}
	}
}

// NumberSets notes which GPUs the sets of the keeper are on.
func NumberSets(sets []control.KeptSet) {
	for i := range sets {
		sets[i].GPU = NumberOf(sets[i].Device, Shown())
	}
}

// Label names a program's device in a column: "3 as 0" is GPU 3, which the program calls 0, and "- as 0" a GPU that NVML
// does not show.
func Label(gpu *int, device int) string {
	switch {
	case gpu == nil:
		return fmt.Sprint("- as ", device)
	case *gpu == device:
		return strconv.Itoa(device)
	}
	return fmt.Sprintf("%d as %d", *gpu, device)
}

// Name names a program's device in a sentence.
func Name(gpu *int, uuid string, device int) string {
	switch {
	case gpu != nil && *gpu == device:
		return fmt.Sprint("GPU ", device)
	case gpu != nil:
		return fmt.Sprintf("GPU %d (device %d)", *gpu, device)
	}
	return stats.DeviceName(device, readable.Printable(uuid))
}

// GPUName names a GPU by NVML's number, or by the UUID if NVML does not show it.
func GPUName(uuid string) string {
	if number := NumberOf(uuid, Shown()); number != nil {
		return fmt.Sprint("GPU ", *number)
	}
	return uuid
}

var ownName = regexp.MustCompile(`device (\d+) \((GPU-[0-9a-f-]+)\)`)

// Renamed returns a process's words with NVML's numbers of the GPUs: a process does not know them, and names its device
// and the UUID.
func Renamed(words string) string {
	return ownName.ReplaceAllStringFunc(words, func(name string) string {
		parts := ownName.FindStringSubmatch(name)
		device, err := strconv.Atoi(parts[1])
		if err != nil {
			return name
		}
		return Name(NumberOf(parts[2], Shown()), parts[2], device)
	})
}
