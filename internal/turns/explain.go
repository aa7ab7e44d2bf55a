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

// Explanation says what processes wait for, as they were at one moment.
type Explanation struct {
	all    []fleet.Process
	silent bool
	views  map[string]*view // of the devices that were asked about, by UUID; nil where no process shares
}

// NewExplanation returns one for all processes that share a device.
func NewExplanation(all []fleet.Process) *Explanation {
	return &Explanation{all: all, silent: silence(all), views: map[string]*view{}}
}

func (e *Explanation) view(uuid string) *view {
	v, known := e.views[uuid]
	if !known {
		if device, sharers := new(maker).sharers(uuid, e.all); len(sharers) > 0 {
			v = newView(device, sharers)
		}
		e.views[uuid] = v
	}
	return v
}

// Waits says what a process waits for on each device, and for whom.
func (e *Explanation) Waits(p fleet.Process) (lines []string) {
	needs := needsOf(p.ProcessState)
	for _, uuid := range slices.Sorted(maps.Keys(needs)) {
		v := e.view(uuid)
		if needs[uuid] == 0 || v == nil || !slices.ContainsFunc(v.waiting, func(o Process) bool { return o.ID == p.PID }) {
			continue
		}
		what := readable.Bytes(needs[uuid])
		if needs[uuid] == 1 { // a call of the driver's that does not say how much
			what = "memory"
		}
		decision := v.decide(p.PID)
		words := inWords(decision)
		r := maker{pid: p.PID, silent: e.silent}
		if of, _ := r.hope(uuid, v.device, v.all, e.all); decision.Never && of != "" {
			words = "it waits for " + of
		}
		lines = append(lines, fmt.Sprintf("%s; it has waited %.1f s for %s on %s, %s free", words, p.Share.Waited, what,
			fleet.GPUName(readable.Printable(uuid)), readable.Bytes(v.device.Free)))
	}
	return lines
}

// named is how many of the processes that one waits for are named.
const named = 8

func inWords(d Decision) string {
	var words []string
	for _, id := range d.For[:min(named, len(d.For))] {
		words = append(words, fmt.Sprint(id))
	}
	others := cmp.Or(strings.Join(words, ", "), "others")
	if more := len(d.For) - named; more > 0 {
		others += fmt.Sprintf(" and %d more", more)
	}
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
