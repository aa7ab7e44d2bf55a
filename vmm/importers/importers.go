// Package importers records which other processes have memory of this one mapped.
package importers

import (
	"maps"
	"slices"
	"sync"
)

// Importer is another process that has a segment open.
type Importer struct {
	PID    int
	Start  uint64
	Number uint64 // which of its imports: random, so no later process with its PID has the same
}

// Record has the importers of named memory. It is safe for use by many threads, and never waits: the thread that serves
// other processes must not. Its zero value is empty.
type Record struct {
	mu sync.Mutex // its holder does nothing else
	of map[uint64][]Importer
}

// Add notes an importer of the memory with a name.
func (r *Record) Add(name uint64, importer Importer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[uint64][]Importer{}
	}
	r.of[name] = append(r.of[name], importer)
}

// Returned notes that an importer no longer has the memory.
func (r *Record) Returned(name uint64, pid int, number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(name, func(i Importer) bool { return i.PID == pid && i.Number == number })
}

// Has reports whether a name has importers, some of which may have ended.
func (r *Record) Has(name uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.of[name]) > 0
}

// Names lists the names that have importers.
func (r *Record) Names() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.of))
}

// Forget drops the importers of memory that is gone.
func (r *Record) Forget(names ...uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		delete(r.of, name)
	}
}

func (r *Record) drop(name uint64, which func(Importer) bool) {
	if left := slices.DeleteFunc(r.of[name], which); len(left) > 0 {
		r.of[name] = left
	} else {
		delete(r.of, name)
	}
}

// Left lists the living processes that have some of the memory, and drops the others. gone reports whether a process
// has ended.
func (r *Record) Left(names []uint64, gone func(Importer) bool) (pids []int) {
	known := map[Importer]bool{} // whether it has ended, by all but the number
	for _, name := range names {
		r.mu.Lock()
		asked := slices.Clone(r.of[name])
		r.mu.Unlock()
		ended := map[Importer]bool{}
		for _, i := range asked {
			process := Importer{PID: i.PID, Start: i.Start}
			if _, asked := known[process]; !asked {
				known[process] = gone(process)
			}
			if ended[i] = known[process]; !ended[i] {
				pids = append(pids, i.PID)
			}
		}
		r.mu.Lock()
		r.drop(name, func(i Importer) bool { return ended[i] })
		r.mu.Unlock()
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
