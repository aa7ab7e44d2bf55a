package vmm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// namesTold is how many tags a warning names.
const namesTold = 8

// warnUnknown tells, once for a name, that nothing was ever made with the tag that is to be paused or resumed:
// most likely it is misspelt.
func (e *Engine) warnUnknown(operation string, name *string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name == nil || e.names[*name] {
		return
	}
	known := slices.Sorted(maps.Keys(e.names))
	e.names[*name] = true // it is told of once
	var quoted []string
	for _, n := range known[:min(len(known), namesTold)] {
		quoted = append(quoted, strconv.Quote(n))
	}
	if len(known) > namesTold {
		quoted = append(quoted, "...")
	}
	e.warn(fmt.Sprintf("%s: nothing was ever allocated with tag %q; tags so far: %s", operation, *name,
		strings.Join(quoted, ", ")))
}
