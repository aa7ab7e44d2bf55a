package turns

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// queue has the processes that hold memory of a device, in the order in which their turns end. It answers for each
// process that waits, in the time of a binary search, how long the process waits if no other does.
type queue struct {
	all    []Process
	others []Process      // that can be paused now or once their turns are over
	sums   []uint64       // at i, the bytes that the first i of others hold together
	at     map[int]int    // in others, by ID
	held   uint64         // by all that can be paused, now or later
	holds  map[int]uint64 // of it, by ID
}

func newQueue(all []Process) *queue {
	q := &queue{all: all, at: map[int]int{}, holds: map[int]uint64{}}
	var dearest time.Duration
	for _, p := range all {
		if p.Need > 0 {
			dearest = max(dearest, p.price())
		}
	}
	for _, p := range all {
		p.swap = dearest
		if bytes := p.Held(); !p.Pinned && bytes > 0 {
			q.held += bytes
			q.holds[p.ID] = bytes
			if !p.Busy {
				q.others = append(q.others, p)
			}
		}
	}
	slices.SortStableFunc(q.others, func(x, y Process) int { return cmp.Compare(x.due(), y.due()) })
	q.sums = make([]uint64, 1, len(q.others)+1)
	for i, p := range q.others {
		q.at[p.ID] = i
		q.sums = append(q.sums, q.sums[i]+q.holds[p.ID])
	}
	return q
}

// without returns others without one process.
func (q *queue) without(id int) []Process {
	if i, ok := q.at[id]; ok {
		return slices.Delete(slices.Clone(q.others), i, i+1)
	}
	return q.others
}

// search says what a process waits for if no other waits: for bytes that it misses, and the last of those others whose
// turns must end. It leaves the device's reserve free if it can. The last is negative if they do not hold enough.
func (q *queue) search(device Device, own Process) (missing uint64, last int, never bool) {
	need := own.Need + device.Reserve
	if device.Free >= need {
		return 0, 0, false
	}
	missing = need - device.Free
	switch held := q.held - q.holds[own.ID]; {
	case held < missing && device.Reserve > 0:
		return q.search(Device{Free: device.Free}, own)
	case held < missing:
		return missing, 0, true
	}
	at, among := q.at[own.ID]
	last = sort.Search(len(q.others), func(i int) bool {
		bytes := q.sums[i+1]
		if among && i >= at {
			bytes -= q.holds[own.ID]
		}
		return bytes >= missing
	})
	if last == len(q.others) {
		last = -1
	}
	return missing, last, false
}

// wait returns how long a process waits if no other does.
func (q *queue) wait(device Device, own Process) (wait time.Duration, never bool) {
	missing, last, never := q.search(device, own)
	switch {
	case never || missing == 0:
		return 0, never
	case last < 0:
		return unknown, false
	}
	return q.others[last].due(), false
}

// plan says what comes next for a process if no other waits.
func (q *queue) plan(device Device, own Process) Decision {
	missing, last, never := q.search(device, own)
	switch {
	case never || missing == 0:
		return Decision{Never: never}
	case last < 0:
		d := Decision{Wait: unknown}
		for _, p := range q.all {
			if p.Busy && p.ID != own.ID {
				d.For = append(d.For, p.ID)
			}
		}
		return d
	}
	wait := q.others[last].due()
	if wait == 0 {
		return Decision{Pause: choose(missing, q.without(own.ID))}
	}
	d := Decision{Wait: wait}
	for _, p := range q.others[:last+1] {
		if p.ID != own.ID && p.due() > 0 {
			d.For = append(d.For, p.ID)
		}
	}
	return d
}

// running returns the queue in which own has what it needs, and its turn begins.
func (q *queue) running(own Process) *queue {
	own.Tags = append(slices.Clone(own.Tags), Tag{Bytes: own.Need})
	own.Need, own.Ran, own.Idle = 0, 0, 0
	all := slices.Clone(q.all)
	all[slices.IndexFunc(all, func(p Process) bool { return p.ID == own.ID })] = own
	return newQueue(all)
}

// delays reports whether w, which is ahead of own and would wait so long, waits longer in this queue, in which own runs.
func (q *queue) delays(device Device, own, w Process, wait time.Duration) bool {
	device.Free -= own.Need
	later, never := q.wait(device, w)
	return never || later > wait
}
