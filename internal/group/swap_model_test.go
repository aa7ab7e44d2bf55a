package group

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A model of a swap in both directions (docs/design/swap.md). The test visits every state that can be reached when any
// step may fail, when the command and each process may be killed at any moment, and when a third process takes memory as
// soon as no lock is held. The rules hold in it; without any one of them, the test finds a state that must not be.

// rules are what the swap keeps to.
type rules struct {
	savesFirst bool // OUT gives the memory of an extent back only when its contents are saved
	losesLast  bool // OUT gives memory without contents back only when all contents are saved
	copiesStay bool // IN keeps its host copies until it is told to complete
	told       bool // IN ends only when it is told: the memory of OUT has come, or will not
	withdrawn  bool // IN's wait ends with the command
	undone     bool // OUT takes back what it has given when the command that paused it has gone
	locked     bool // the command has the locks until OUT has taken that back
}

var allRules = rules{true, true, true, true, true, true, true}

const (
	outExtents = 3 // of OUT, of which the last has no backup
	inExtents  = 3
)

// memory is where the contents of an extent are. Without either, they are lost.
type memory struct {
	device bool // it has memory of the device
	valid  bool // and its contents there
	host   bool // a host copy of its contents
}

// phase is what a process does.
type phase int

const (
	before  phase = iota // OUT is active, IN is paused
	working              // OUT pauses, IN resumes
	good                 // it has answered: done
	bad                  // it has answered: not done
	undoing              // OUT takes its memory back
	ended                // that is over
	dead
)

// swapState is a state of the model.
type swapState struct {
	out      [outExtents]memory
	in       [inExtents]memory
	outPhase phase
	inPhase  phase
	active   bool // IN has completed
	kept     bool // OUT's pause outlasts the command
	failed   bool // OUT's pause has failed by itself

	command  bool // lives
	began    bool
	complete bool // IN was told so
	stop     bool // IN was told so
	again    bool // IN tries once more, as one after the other
	over     bool // the command has ended in order
	third    int  // extents that another process has

	faults int // that may still come
	kills  int
}

// world is what does not change.
type swapWorld struct {
	rules
	device, host int // extents that there is room for
	inSize       int
}

func (w *swapWorld) used(s *swapState) (device, host int) {
	for _, m := range s.out {
		device, host = device+count(m.device), host+count(m.host)
	}
	for _, m := range s.in[:w.inSize] {
		device, host = device+count(m.device), host+count(m.host)
	}
	return device + s.third, host
}

// holds reports whether the command has the locks of the device.
func (w *swapWorld) holds(s *swapState) bool {
	ahead := !s.complete && !s.stop || s.inPhase == working && !s.again
	undoes := s.stop && s.outPhase != ended && s.outPhase != dead
	return s.command && s.began && !s.over && (ahead || undoes && w.locked)
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func (w *swapWorld) first() swapState {
	s := swapState{command: true, faults: 1, kills: 2}
	for i := range s.out {
		s.out[i] = memory{device: true, valid: true}
	}
	for i := range w.inSize {
		s.in[i].host = true
	}
	return s
}

// next lists the states after one step, by what the step is. Those of faults begin with "fault".
func (w *swapWorld) next(s swapState) map[string]swapState {
	steps := map[string]swapState{}
	step := func(name string, change func(*swapState)) {
		n := s
		change(&n)
		steps[name] = n
	}
	device, host := w.used(&s)
	w.outSteps(&s, device, host, step)
	w.inSteps(&s, device, step)
	w.commandSteps(&s, step)
	// A command that is killed leaves the device to whoever comes first.
	if device < w.device && s.third == 0 && s.command && !w.holds(&s) {
		step("another process takes memory", func(n *swapState) { n.third++ })
	}
	if s.kills > 0 {
		if s.outPhase != dead {
			step("fault: OUT is killed", func(n *swapState) {
				n.kills--
				n.outPhase, n.out, n.kept = dead, [outExtents]memory{}, false
			})
		}
		if s.inPhase != dead {
			step("fault: IN is killed", func(n *swapState) {
				n.kills--
				n.inPhase, n.in, n.active = dead, [inExtents]memory{}, false
			})
		}
		if s.command && !s.over {
			step("fault: the command is killed", func(n *swapState) { n.kills--; n.command = false })
		}
	}
	return steps
}

// outSteps are those of OUT: it saves, gives back, fails, and takes back.
func (w *swapWorld) outSteps(s *swapState, device, host int, step func(string, func(*swapState))) {
	last := outExtents - 1
	switch s.outPhase {
	case working:
		saved := true
		for i, m := range s.out[:last] {
			saved = saved && m.host
			if m.device && !m.host && host < w.host {
				step(fmt.Sprint("OUT saves ", i), func(n *swapState) { n.out[i].host = true })
			}
			if m.device && (m.host || !w.savesFirst) {
				step(fmt.Sprint("OUT gives back ", i), func(n *swapState) { n.out[i].device, n.out[i].valid = false, false })
			}
		}
		if s.out[last].device && (saved || !w.losesLast) {
			step("OUT gives back what has no backup", func(n *swapState) { n.out[last] = memory{} })
		}
		if !slices.ContainsFunc(s.out[:], func(m memory) bool { return m.device }) {
			step("OUT is paused", func(n *swapState) { n.outPhase = good })
		} else if s.faults > 0 && (s.out[last].device || !w.losesLast) { // else it has unmapped everything, and goes on
			step("fault: OUT cannot save", func(n *swapState) {
				n.faults--
				n.outPhase, n.failed = bad, true
				for i := range n.out {
					n.out[i].host = n.out[i].host && !n.out[i].device // what still has its memory stays active
				}
			})
		}
	case good, bad:
		if !s.command && !s.kept && w.undone {
			step("OUT is left", func(n *swapState) { n.outPhase = undoing })
		}
	case undoing:
		lacks := 0
		for _, m := range s.out {
			lacks += count(!m.device)
		}
		if device+lacks <= w.device {
			step("OUT is back", func(n *swapState) {
				n.outPhase = ended
				for i := range n.out {
					m := &n.out[i]
					m.valid, m.host, m.device = m.valid || m.host, false, true
				}
			})
		}
	}
}

// inSteps are those of IN: it makes and fills, completes, or gives up.
func (w *swapWorld) inSteps(s *swapState, device int, step func(string, func(*swapState))) {
	if s.inPhase != working {
		return
	}
	extents := s.in[:w.inSize]
	filled := !slices.ContainsFunc(extents, func(m memory) bool { return !m.valid })
	for i, m := range extents {
		if !m.device && device < w.device {
			step(fmt.Sprint("IN makes ", i), func(n *swapState) { n.in[i].device = true })
		}
		if m.device && !m.valid && m.host {
			step(fmt.Sprint("IN fills ", i), func(n *swapState) { n.in[i].valid, n.in[i].host = true, w.copiesStay })
		}
	}
	if filled && (s.complete || !w.told) {
		step("IN completes", func(n *swapState) {
			n.inPhase, n.active = good, true
			for i := range n.in {
				n.in[i].host = false
			}
		})
	}
	gives := func(n *swapState) {
		n.inPhase = bad
		for i := range n.in {
			n.in[i].device, n.in[i].valid = false, false
		}
	}
	short := s.complete && !filled && device == w.device // nothing more comes
	if short || s.stop || !s.command && !s.complete && w.withdrawn {
		step("IN gives up", gives)
	}
	if s.faults > 0 {
		step("fault: IN cannot resume", func(n *swapState) { n.faults--; gives(n) })
	}
}

// commandSteps are those of the command.
func (w *swapWorld) commandSteps(s *swapState, step func(string, func(*swapState))) {
	answered := func(p phase) bool { return p == good || p == bad || p == dead }
	switch {
	case !s.command || s.over:
	case !s.began:
		if s.outPhase == before && s.inPhase == before {
			step("the command begins", func(n *swapState) { n.began, n.outPhase, n.inPhase = true, working, working })
		} else {
			step("the command refuses", func(n *swapState) { n.over = true })
		}
	case !s.complete && !s.stop && s.outPhase == good:
		step("the command has IN complete", func(n *swapState) { n.complete = true })
	case !s.complete && !s.stop && answered(s.outPhase):
		step("the command has IN stop", func(n *swapState) { n.stop = true })
	case !s.complete && !s.stop || !answered(s.inPhase):
	case s.stop && s.outPhase == bad, s.complete && s.inPhase != good && s.again && s.outPhase == good,
		s.inPhase == dead && s.outPhase == good:
		step("the command undoes", func(n *swapState) { n.outPhase = undoing })
	case s.complete && s.inPhase == bad && !s.again:
		step("the command has IN try again", func(n *swapState) { n.again, n.inPhase = true, working })
	case s.complete && s.inPhase == good && s.outPhase == good && !s.kept:
		step("the command keeps the pause", func(n *swapState) { n.kept = true })
	case s.outPhase != undoing:
		step("the command ends", func(n *swapState) { n.over = true })
	}
}

// wrong says why a state must not be, or is "". still says that nothing happens any longer.
func (w *swapWorld) wrong(s *swapState, still bool) string {
	device, host := w.used(s)
	if device > w.device || host > w.host {
		return "more memory is used than there is"
	}
	outActive, outSaved, inSaved := true, true, true
	for i, m := range s.out {
		outActive = outActive && m.device && (m.valid || i == outExtents-1)
		if i < outExtents-1 {
			outSaved = outSaved && (m.host || m.valid)
		} else if s.failed && s.outPhase != dead && !m.valid {
			return "a pause that failed has lost what has no backup"
		}
	}
	inPaused := true
	for _, m := range s.in[:w.inSize] {
		inSaved = inSaved && (m.host || m.valid)
		inPaused = inPaused && !m.device
	}
	out, in := s.outPhase != dead, s.inPhase != dead
	if out && !outSaved {
		return "contents of OUT are lost"
	}
	if in && !inSaved {
		return "contents of IN are lost"
	}
	if !still {
		return ""
	}
	outPaused := !slices.ContainsFunc(s.out[:], func(m memory) bool { return m.device })
	switch {
	case out && !outActive && !outPaused:
		return "OUT is half paused for good"
	case in && !s.active && !inPaused:
		return "IN is half resumed for good"
	case out && in && outPaused && !s.active && s.third == 0: // else both wait for its memory
		return "both are paused for good"
	case out && in && !outPaused && s.active && s.command:
		return "both are active, though the swap has failed"
	case out && !in && outPaused && !s.kept && s.third == 0:
		return "OUT is paused for good, for a process that is dead"
	}
	return ""
}

// explore visits all states, and returns the first that is wrong, with the steps to it, and how many states there are.
func (w *swapWorld) explore() (wrong string, states int) {
	type way struct {
		from swapState
		step string
	}
	start := w.first()
	seen := map[swapState]way{start: {}}
	queue := []swapState{start}
	for ; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		still := true
		for name, n := range w.next(s) {
			still = still && len(name) > 5 && name[:5] == "fault"
			if _, known := seen[n]; !known {
				seen[n] = way{s, name}
				queue = append(queue, n)
			}
		}
		if wrong = w.wrong(&s, still); wrong != "" {
			for at := s; at != start; at = seen[at].from {
				wrong = seen[at].step + "\n" + wrong
			}
			return wrong, len(seen)
		}
	}
	return "", len(seen)
}

// Whatever fails and whoever is killed, a swap in both directions uses no more memory than there is, loses nothing, and
// ends with one of the two on the device.
func TestEverySwapInBothDirections(t *testing.T) {
	worlds := func(of rules) (all []swapWorld) {
		for inSize := 1; inSize <= inExtents; inSize++ {
			for device := outExtents; device <= outExtents+inSize; device++ {
				all = append(all, swapWorld{of, device, outExtents - 1 + inSize, inSize})
			}
		}
		return all
	}
	for _, w := range worlds(allRules) {
		wrong, states := w.explore()
		require.Empty(t, wrong, "%+v", w)
		t.Logf("room for %d extents, %d of IN: %d states", w.device, w.inSize, states)
	}
	without := func(change func(*rules)) rules {
		r := allRules
		change(&r)
		return r
	}
	for _, c := range []struct {
		wrong string
		of    rules
	}{
		{"contents of OUT are lost", without(func(r *rules) { r.savesFirst = false })},
		{"a pause that failed has lost what has no backup", without(func(r *rules) { r.losesLast = false })},
		{"contents of IN are lost", without(func(r *rules) { r.copiesStay = false })},
		{"both are active, though the swap has failed", without(func(r *rules) { r.told = false })},
		{"IN is half resumed for good", without(func(r *rules) { r.withdrawn = false })},
		{"OUT is half paused for good", without(func(r *rules) { r.undone = false })},
		{"OUT is half paused for good", without(func(r *rules) { r.locked = false })},
	} {
		require.True(t, slices.ContainsFunc(worlds(c.of), func(w swapWorld) bool {
			found, _ := w.explore()
			return strings.HasSuffix(found, "\n"+c.wrong)
		}), "no world needs the rules beside %+v", c.of)
	}
}
