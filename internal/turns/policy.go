package turns

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// Grace is how long a process must have had no work to be paused before its turn is over.
	Grace = 20 * time.Millisecond
	// runs is how many times the price of a swap a turn lasts. Swaps add a twelfth to the time of programs that always
	// have work. With the first of all turns, and the waits for calls to end, they still add less than a tenth.
	runs = 12
	// An unmeasured swap is taken to cost this: contents go out and come back.
	leastPrice     = 50 * time.Millisecond
	bytesPerSecond = 16 << 30
)

// Tag is memory that is paused as a whole.
type Tag struct {
	Name  string
	Bytes uint64 // on the device now
}

// Process is what is known of a process that shares the device.
type Process struct {
	ID       int
	Priority float64
	Tags     []Tag
	Idle     time.Duration // since it had work
	Ran      time.Duration // since its memory last came back, or since it began, without waits for more
	Grew     time.Duration // since its last wait for more ended, or 0 before the first
	AtLeast  time.Duration // its turn, or negative for a multiple of the price of a swap
	Price    time.Duration // of a pause and resume of what it has and needs, or 0 if it was not measured
	Away     time.Duration // from its last pause to the call that wanted the memory back, or negative
	Pinned   bool          // it cannot be paused
	Busy     bool          // it cannot be paused at this moment
	Need     uint64        // bytes that it waits for, or 0
	Grows    bool          // it has not had that many bytes before
	Waited   time.Duration

	swap time.Duration // what it costs, at most, that a process that waits takes its place and gives it back
}

// Part is what is to be paused of a process.
type Part struct {
	ID   int
	Tags []string // nil: all that it has
	Idle bool     // only if it still has no work
}

// Decision says what comes next for a process that needs memory.
type Decision struct {
	Never bool          // there will never be enough
	Wait  time.Duration // the longest time until the next question, or 0 to go on
	For   []int         // the processes that it waits for
	Pause []Part        // to pause first; empty if there is enough
}

// unknown is a wait whose end depends on what a program does.
const unknown = time.Duration(math.MaxInt64)

// Held returns the bytes that a process has on the device.
func (p *Process) Held() (bytes uint64) {
	for _, t := range p.Tags {
		bytes += t.Bytes
	}
	return bytes
}

// price returns the cost of pausing a process and of resuming it, with the memory that it waits for.
func (p *Process) price() time.Duration {
	if p.Price > 0 {
		return p.Price
	}
	return leastPrice + time.Duration(float64(p.Held()+p.Need)/bytesPerSecond*float64(time.Second))
}

// Turn returns how long a process with work may run before others take its memory.
func (p *Process) Turn() time.Duration {
	if p.AtLeast >= 0 {
		return p.AtLeast
	}
	return runs * p.price()
}

// idle reports whether a process may be paused because it has no work. If the process wanted its memory back soon after
// the last pause, that was a gap in its work, and it must now be without work for longer: for as long as the swap costs.
// That is the dearer of the two prices. By its own price alone, a program that is paused cheaply would lose its turn in
// each gap, and then wait for the long turn of a program that is not.
func (p *Process) idle() bool {
	swap := max(p.price(), p.swap)
	return p.Idle >= Grace && (p.Away < 0 || p.Away >= swap/2) || p.Idle >= max(Grace, swap)
}

// due returns when a process may be paused.
func (p *Process) due() time.Duration {
	if p.Need > 0 || p.idle() {
		return 0
	}
	return max(0, p.Turn()-p.Ran)
}

// grown returns the bytes of a process during its turn, or 0 if the turn is over or has not begun.
func (p *Process) grown() uint64 {
	if p.Ran >= p.Turn() {
		return 0
	}
	return p.Held()
}

// turnsOf returns the time in which all processes take their turns and swap once. A process waits no longer than that
// without its own turn, or than twice that where priorities differ. Kernels that run longer than a turn, and captures,
// come on top.
func turnsOf(all []Process) (sum time.Duration) {
	for _, p := range all {
		sum += p.price() + p.Turn()
	}
	return sum
}

// Device is what is known of the device.
type Device struct {
	Free, Reserve uint64 // bytes; the reserve stays free, as far as others can make room for that
}

// Decide says what comes next for the process id, which has a Need.
func Decide(device Device, all []Process, id int) Decision { return newView(device, all).decide(id) }

// view is a device with the processes that share it, in the orders in which they are looked at. One view serves the
// decisions of all processes.
type view struct {
	device  Device
	all     []Process
	waiting []Process // first come, first served, but for what before says
	others  *queue
}

func newView(device Device, all []Process) *view {
	highest := slices.MaxFunc(all, func(x, y Process) int { return cmp.Compare(x.Priority, y.Priority) }).Priority
	waiting := slices.DeleteFunc(slices.Clone(all), func(p Process) bool { return p.Need == 0 })
	turns := turnsOf(all)
	for i, p := range waiting {
		if p.Waited > turns-p.Turn() { // overdue
			waiting[i].Priority = highest
		}
	}
	slices.SortFunc(waiting, Process.before)
	return &view{device: device, all: all, waiting: waiting, others: newQueue(all)}
}

func (v *view) decide(id int) Decision {
	at := slices.IndexFunc(v.waiting, func(p Process) bool { return p.ID == id })
	own := v.waiting[at]
	d := v.others.plan(v.device, own)
	if d.Never {
		return d
	}
	takes := d.Wait > 0 || len(d.Pause) > 0 // memory from others
	var first []int
	// A process that grows may need as much again as it has. The need of two growing processes is unknown.
	short := func(p Process) bool { return own.Grows || v.device.Free < own.Need+p.Held() }
	running := sync.OnceValue(func() *queue { return v.others.running(own) })
	for _, w := range v.waiting[:at] {
		theirs, never := v.others.wait(v.device, w)
		if never || theirs == unknown {
			continue
		}
		grows := w.grown() > 0 && theirs == 0 && short(w)
		if takes || grows || running().delays(v.device, own, w, theirs) {
			first = append(first, w.ID)
		}
	}
	for _, p := range v.all {
		if p.Need == 0 && p.Grew > 0 && p.Grew < p.price() && short(p) && own.before(p) > 0 {
			first, d.Wait = append(first, p.ID), max(d.Wait, p.price()-p.Grew)
		}
	}
	if len(first) > 0 {
		return Decision{Wait: max(d.Wait, Grace), For: first}
	}
	return d
}

// before compares what comes first. A process that is still growing during its turn goes first. If several grow, the
// one with the most memory goes first. Otherwise each of them would be paused while it grows.
func (p Process) before(o Process) int {
	return cmp.Or(cmp.Compare(o.Priority, p.Priority), cmp.Compare(o.grown(), p.grown()), cmp.Compare(o.Waited, p.Waited),
		cmp.Compare(p.ID, o.ID))
}

// unit is a tag that may be paused.
type unit struct {
	of   *Process
	tag  Tag
	work bool          // its process has some
	cost float64       // in seconds that others lose, roughly
	over time.Duration // how long its turn has been over
}

// unitsOf returns the tags of processes that are due, the least costly first: first of processes without work, then of
// lower priorities. A swap costs less the longer its process has had no work, because the process will be without work
// as long again.
func unitsOf(others []Process) (units []unit) {
	for i := range others {
		p := &others[i]
		if p.due() > 0 {
			continue
		}
		work := p.Need == 0 && !p.idle()
		price, held := p.price().Seconds(), float64(p.Held())
		for _, t := range p.Tags {
			cost := price * float64(t.Bytes) / held
			if !work {
				cost /= max(p.Idle, Grace).Seconds()
			}
			units = append(units, unit{p, t, work, cost, p.Ran - p.Turn()})
		}
	}
	slices.SortStableFunc(units, func(x, y unit) int {
		switch {
		case x.work != y.work:
			return map[bool]int{true: 1, false: -1}[x.work]
		case x.of.Priority != y.of.Priority:
			return cmp.Compare(x.of.Priority, y.of.Priority)
		case x.work && x.of != y.of: // each process that is stopped loses its work
			return cmp.Or(cmp.Compare(y.over, x.over), cmp.Compare(x.of.ID, y.of.ID))
		}
		return cmp.Compare(x.cost, y.cost)
	})
	return units
}

// choose returns the least costly parts of other processes that are due, with enough bytes.
func choose(missing uint64, others []Process) []Part {
	var chosen []unit
	var bytes uint64
	for _, u := range unitsOf(others) {
		if bytes < missing && u.tag.Bytes > 0 {
			chosen, bytes = append(chosen, u), bytes+u.tag.Bytes
		}
	}
	for i := len(chosen) - 1; i >= 0; i-- { // not more than is needed
		if left := bytes - chosen[i].tag.Bytes; left >= missing {
			chosen[i].of, bytes = nil, left
		}
	}
	return parts(slices.DeleteFunc(chosen, func(u unit) bool { return u.of == nil }))
}

func parts(chosen []unit) (found []Part) {
	at := map[int]int{}             // in found, by ID
	left := []map[string]struct{}{} // the tags of each of found that hold memory and are not chosen
	for _, u := range chosen {
		i, known := at[u.of.ID]
		if !known {
			i = len(found)
			at[u.of.ID] = i
			found = append(found, Part{ID: u.of.ID, Idle: !u.work && u.of.Need == 0})
			left = append(left, map[string]struct{}{})
			for _, t := range u.of.Tags {
				if t.Bytes > 0 {
					left[i][t.Name] = struct{}{}
				}
			}
		}
		found[i].Tags = append(found[i].Tags, u.tag.Name)
		delete(left[i], u.tag.Name)
	}
	for i := range found {
		if len(left[i]) == 0 {
			found[i].Tags = nil // all
		}
	}
	return found
}
