package main

// #include "shim.h"
import "C"

import (
	"slices"
	"time"

	"tms/vmm"
	"tms/vmm/stats"
)

// emptyLimit is how long a pause waits for PyTorch to give memory back. It takes Python's lock, and the allocator's,
// which a thread of the program may hold; then the pause saves what is cached, too.
const emptyLimit = time.Second

// emptyTorchCache has PyTorch give back what it only caches, if a pause of the tags would save contents. It is called
// while no stream is being captured or can begin to be, and before the gate closes: a thread that waits there may hold
// the allocator's lock.
func emptyTorchCache(e *vmm.Engine, options vmm.Options, timeout time.Duration) {
	if options.Discard {
		return
	}
	means := func(tag stats.Tag) bool {
		return options.Tags == nil ||
			slices.ContainsFunc(options.Tags, func(name string) bool { return stats.TagText(name) == tag.Tag })
	}
	saves := func(tag stats.Tag) bool {
		saved := tag.PhysicalBytes
		if !options.SaveAll {
			saved -= min(saved, tag.PauseWithoutContents)
		}
		return means(tag) && saved > 0
	}
	for _, d := range e.Records().Recorded().Devices {
		if slices.ContainsFunc(d.Tags, saves) {
			C.pytorch_empty_cache(C.double(min(emptyLimit, timeout/4).Seconds()))
			return
		}
	}
}
