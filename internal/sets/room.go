package sets

import (
	"math"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
)

// A keeper at its limit of descriptors must still be able to answer. Otherwise only its end would help, and that loses
// the sets. So it holds only as many descriptors as leave room for the connections of clients.

const (
	clients      = 64 // answered at once, if the limit allows
	fewClients   = 4
	perClient    = 4  // its connection, a descriptor that it sends, one for it, and a look at the process
	foundations  = 16 // the socket, Go's own, the standard streams
	fewForHolder = 8
)

// openLimit returns how many descriptors this process can have. (getrlimit)
func openLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}

// clientsWithin returns how many clients are answered at once.
func clientsWithin(limit int) int {
	return max(fewClients, min(clients, (limit-foundations)/4/perClient))
}

// descriptorsWithin returns how many descriptors the keeper may hold.
func descriptorsWithin(limit int) int {
	return max(fewForHolder, limit-foundations-perClient*clientsWithin(limit))
}

// roomWithin returns the Room of a keeper. It counts what the keeper holds: the number of a descriptor would count the
// connections of clients, too, which come and go in the same table.
func roomWithin(limit int) func(count, descriptor int) error {
	return func(count, _ int) error {
		if count < descriptorsWithin(limit) {
			return nil
		}
		return cuda.Refuse(cuda.OperatingSystem, "it holds %d descriptors, and its limit allows no more (ulimit -n %d): "+
			"drop sets, reserve less, or start tms keeper with a higher limit", count, limit)
	}
}
