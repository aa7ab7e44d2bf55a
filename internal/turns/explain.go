package turns

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
)

// Waits says what a process waits for on each device, and for whom.
func Waits(p fleet.Process, all []fleet.Process) (lines []string) {
	needs := needsOf(p.ProcessState)
	for _, uuid := range slices.Sorted(maps.Keys(needs)) {
		r := maker{pid: p.PID, silent: silence(all)}
		device, sharers := r.sharers(uuid, all)
		if needs[uuid] == 0 || !slices.ContainsFunc(sharers, func(p Process) bool { return p.ID == r.pid }) {
			continue
		}
		what := readable.Bytes(needs[uuid])
		if needs[uuid] == 1 { // a call of the driver's that does not say how much
			what = "memory"
		}
		decision := Decide(device, sharers, p.PID)
		words := inWords(decision)
		if of, _ := r.hope(uuid, device, sharers, all); decision.Never && of != "" {
			words = "it waits for " + of
		}
		lines = append(lines, fmt.Sprintf("%s; it has waited %.1f s for %s on %s, %s free", words, p.Share.Waited, what,
			fleet.GPUName(readable.Printable(uuid)), readable.Bytes(device.Free)))
	}
	return lines
}

func inWords(d Decision) string {
	var words []string
	for _, id := range d.For {
		words = append(words, fmt.Sprint(id))
	}
	others := cmp.Or(strings.Join(words, ", "), "others")
	switch {
	case d.Never:
		return "there will never be enough"
	case d.Wait > 0 && d.Wait < longest:
		return fmt.Sprintf("it waits for %s, at most %.2f s", others, d.Wait.Seconds())
	case d.Wait > 0:
		return "it waits until " + others + " can be paused"
	case len(d.Pause) == 0:
		return "there is room"
	}
	words = nil
	for _, part := range d.Pause {
		what := cmp.Or(readable.Printable(strings.Join(part.Tags, ", ")), "all")
		words = append(words, fmt.Sprintf("%s of %d", what, part.ID))
	}
	return "a pause of " + strings.Join(words, "; ") + " makes room"
}
