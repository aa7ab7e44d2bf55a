package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/machine/nvml"
	"tms/preload/goruntime"
)

// holdersLimit is how long a resume waits for their names.
const holdersLimit = 5 * time.Second

// holders names the processes that hold the most memory of a device, by the driver's numbers. NVML is loaded first, and
// the loader's lock may be with a thread that waits for this very resume: then it names none.
func (p *Process) holders(uuid string) string {
	if p.askingHolders.Swap(true) {
		return ""
	}
	named := make(chan string, 1)
	goruntime.Hand(func() {
		defer p.askingHolders.Store(false)
		_ = goruntime.Run(func() error { named <- askHolders(uuid); return nil })
	})
	select {
	case words := <-named:
		return words
	case <-time.After(holdersLimit):
		return ""
	}
}

func askHolders(uuid string) string {
	library, err := nvml.Open()
	if err != nil {
		return ""
	}
	defer library.Close()
	devices, _ := library.Devices()
	var words []string
	for _, d := range devices {
		if d.UUID != uuid {
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
