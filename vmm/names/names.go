// Package names knows the tags that a program has used, and finds those that are most likely misspelt.
package names

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

const (
	told        = 8  // how many names a warning has
	unknownTold = 16 // of how many unknown names there are warnings

	most = 10000 // that are remembered: a program may use a new tag for each of its steps
)

// Known is safe for use by many threads. Its zero value knows no name.
type Known struct {
	mu     sync.Mutex
	names  map[string]bool
	warned map[[2]string]bool // of operations and names
}

// Note remembers a name.
func (k *Known) Note(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil {
		k.names = map[string]bool{}
	}
	if len(k.names) <= most {
		k.names[name] = true
	}
}

// Len returns how many names are remembered.
func (k *Known) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.names)
}

// Unknown returns words about a name that was never noted; "" for any other, and where there were too many names to
// remember.
func (k *Known) Unknown(name string) string {
	k.mu.Lock()
	unknown := !k.names[name] && len(k.names) <= most
	var known []string
	if unknown {
		known = slices.Collect(maps.Keys(k.names))
	}
	k.mu.Unlock()
	switch {
	case !unknown:
		return ""
	case len(known) == 0:
		return fmt.Sprintf("nothing was ever allocated with tag %.80q, nor with any other", name)
	}
	slices.Sort(known) // without the lock, for which allocations wait
	var quoted []string
	for _, n := range known[:min(len(known), told)] {
		quoted = append(quoted, fmt.Sprintf("%.80q", n))
	}
	if len(known) > told {
		quoted = append(quoted, "...")
	}
	return fmt.Sprintf("nothing was ever allocated with tag %.80q; tags so far: %s", name, strings.Join(quoted, ", "))
}

// FirstUse is Unknown for a warning: it returns words once for an operation and a name, and for few names in all.
func (k *Known) FirstUse(operation, name string) string {
	words, use := k.Unknown(name), [2]string{operation, name}
	k.mu.Lock()
	defer k.mu.Unlock()
	if words == "" || k.warned[use] || len(k.warned) >= unknownTold {
		return ""
	}
	if k.warned == nil {
		k.warned = map[[2]string]bool{}
	}
	k.warned[use] = true
	return words
}
