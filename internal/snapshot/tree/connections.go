package tree

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// CRIU keeps TCP connections, all or none. Where the other end of one is outside of the tree, none: that end would wait for
// a program that is gone, and be told nothing.

const (
	established = "01"
	closed      = "07"
	listens     = "0A"
)

// mapped4 begins an address of IPv4 in a socket of IPv6, as /proc has it.
const mapped4 = "0000000000000000FFFF0000"

func plain(address string) string { return strings.TrimPrefix(address, mapped4) }

// connected reports whether the processes have TCP connections, of which each has both ends in them, and whether some end
// has sent what the other one has not taken, as when that reads more slowly: CRIU dumps such a connection, and then cannot
// restore it.
func connected(processes []snapshot.Process) (are, waits bool) {
	if len(processes) == 0 || !criu.KeepsConnections() {
		return false, false
	}
	owned := map[string]bool{} // inodes of sockets
	for _, p := range processes {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		for _, link := range links {
			if to, _ := os.Readlink(link); strings.HasPrefix(to, "socket:[") {
				owned[strings.Trim(to, "socket:[]")] = true
			}
		}
	}
	ends := map[string]bool{}
	for _, family := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", processes[0].PID, family))
		if err != nil && family == "tcp" {
			return false, false
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line) // number, local address, remote address, state, bytes to send:to read, ...
			if len(fields) < 10 || !owned[fields[9]] || fields[3] == listens || fields[3] == closed {
				continue
			}
			if fields[3] != established {
				return false, false
			}
			waits = waits || !strings.HasPrefix(fields[4], "00000000:")
			ends[plain(fields[1])+" "+plain(fields[2])] = true
		}
	}
	for end := range ends {
		local, remote, _ := strings.Cut(end, " ")
		if !ends[remote+" "+local] {
			return false, false
		}
	}
	return len(ends) > 0, waits
}
