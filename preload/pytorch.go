package main

// #include "shim.h"
import "C"

import (
	"slices"
	"time"

	"tms/vmm"
	"tms/vmm/stats"
)

// beginLimit is how long a pause waits for Python's lock, which a thread of the program may hold as long as it likes, and
// endLimit how long PyTorch has to give memory back: it takes the allocator's lock, which a thread may hold that waits.
// Then the pause saves what is cached, too. Clients wait longer than that (group.AnswerTime) beyond the timeout.
const beginLimit, endLimit = time.Second, 4 * time.Second

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
			end := min(endLimit, timeout/4)
			C.pytorch_empty_cache(C.double(min(beginLimit, end).Seconds()), C.double(end.Seconds()))
			return
		}
	}
}
