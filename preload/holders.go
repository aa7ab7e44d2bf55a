package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tms/internal/nvml"
	"tms/internal/readable"
)

// holders names the processes that hold the most memory of a device, by the driver's numbers.
func holders(uuid string) string {
	library, err := nvml.Open()
	if err != nil {
		return ""
	}
	defer library.Close()
	devices, _ := library.Devices()
	var words []string
	for _, d := range devices {
		if d.UUID != uuid { // ours may be a part of it
			continue
		}
		slices.SortFunc(d.Processes, func(x, y nvml.Process) int { return cmp.Compare(y.UsedBytes, x.UsedBytes) })
		for _, p := range d.Processes {
			if p.UsedBytes > 0 && len(words) < 4 {
				words = append(words, fmt.Sprintf("; process %d holds %s", p.PID, readable.Bytes(p.UsedBytes)))
			}
		}
	}
	return strings.Join(words, "")
}
