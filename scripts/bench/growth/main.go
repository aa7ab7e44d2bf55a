// Command growth measures how long a process that waits for memory takes to decide who makes room, among processes that
// share the device. It is for scripts/bench.sh growth.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"tms/internal/turns"
)

func main() {
	for _, argument := range os.Args[1:] {
		count, err := strconv.Atoi(argument)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		fmt.Println("wait", count, decide(crowd(count, true)).Seconds())
		fmt.Println("work", count, decide(crowd(count, false)).Seconds())
	}
}

// crowd returns processes of 1 GiB in four tags. One of four holds memory and the others wait, if waiting is set; else
// the last one alone waits, for all memory of the others.
func crowd(count int, waiting bool) (all []turns.Process) {
	for id := range count {
		p := turns.Process{ID: id, AtLeast: -1, Away: -1, Ran: time.Duration(id) * time.Millisecond, Priority: float64(id % 3)}
		if waiting && id%4 != 0 {
			p.Need, p.Waited = 1<<30, time.Duration(id)*time.Microsecond
		} else {
			for tag := range 4 {
				p.Tags = append(p.Tags, turns.Tag{Name: strconv.Itoa(tag), Bytes: 1 << 28})
			}
			p.Ran = time.Hour
		}
		all = append(all, p)
	}
	last := &all[count-1]
	last.Tags, last.Priority, last.Need = nil, 0, uint64(count-1)<<30
	if waiting {
		last.Need = 1 << 30
	}
	return all
}

// decide returns the shortest of some decisions of the last process.
func decide(all []turns.Process) time.Duration {
	least := time.Duration(1 << 62)
	for range 5 {
		begun := time.Now()
		turns.Decide(turns.Device{}, all, len(all)-1)
		least = min(least, time.Since(begun))
	}
	return least
}
