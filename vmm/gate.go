package vmm

import (
	"maps"
	"slices"
)

// A gated pause stops a program that does not cooperate: libtms_reach.so holds its threads at their next CUDA call, the
// engine waits for the work that they have submitted, and the threads go on when all memory is back. The engine knows
// neither the threads nor what holds them.

// Gated reports whether a gated pause still keeps anything paused.
func (r Records) Gated() bool {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gating
}

// GatedTags lists the tags of which gated pauses keep something paused. It is never nil.
func (r Records) GatedTags() []string {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	names := map[string]bool{}
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		for name, t := range d.tags {
			if p.yield(e, 1); t.gated > 0 {
				names[name] = true
			}
		}
	}
	return slices.AppendSeq([]string{}, maps.Keys(names))
}

// tellPaused is called after anything that may have ended the last gated pause, or changed whether something is
// exposed. The caller holds e.mu.
func (e *Engine) tellPaused() {
	gated, exposed := 0, 0
	for _, d := range e.devices {
		gated += d.gated
		exposed += d.exposed
	}
	if was := e.exposing; was != (exposed > 0) {
		e.exposing = !was
		e.process.Exposed(e.exposing)
	}
	if was := e.gating; was != (gated > 0) {
		e.gating = !was
		e.process.Gated(e.gating)
	}
}
