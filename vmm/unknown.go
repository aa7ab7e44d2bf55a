package vmm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	namesTold   = 8  // how many tags a warning names
	unknownTold = 16 // how often unknown tags are told of
)

// warnUnknown tells, once for an operation and a name, that nothing was ever made with the tag that is to be paused or
// resumed: most likely it is misspelt.
func (e *Engine) warnUnknown(operation string, name *string) {
	e.mu.Lock()
	if name == nil || e.names[*name] || e.unknown[[2]string{operation, *name}] || len(e.unknown) == unknownTold {
		e.mu.Unlock()
		return
	}
	e.unknown[[2]string{operation, *name}] = true
	known := slices.Collect(maps.Keys(e.names))
	e.mu.Unlock()
	slices.Sort(known)
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
