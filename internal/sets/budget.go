package sets

import (
	"cmp"
	"slices"

	"tms/internal/control"
)

// Excess names the sets to demote so that sets keep to the budget, in bytes of each device. It chooses the least
// recently used of the sets that no process has open. If promoted is a name, it also makes room for that set.
func Excess(budget uint64, promoted string) (names []string, err error) {
	reply, _, err := Ask(control.SetRequest{Op: control.List}, -1)
	slices.SortFunc(reply.Sets, func(a, b control.KeptSet) int { return cmp.Compare(a.Used, b.Used) })
	taken := map[string]uint64{}
	for _, s := range reply.Sets {
		if s.Place == Device || s.Name == promoted && !s.Replaced {
			taken[s.Device] += s.Bytes
		}
	}
	for _, s := range reply.Sets {
		idle := s.Sealed != 0 && !s.Replaced && s.Place == Device && len(s.Users) == 0 && s.Name != promoted
		if idle && taken[s.Device] > budget {
			taken[s.Device] -= s.Bytes
			names = append(names, s.Name)
		}
	}
	return names, err
}
