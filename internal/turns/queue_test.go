package turns

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

// The index answers as a walk over all processes does, for devices of every kind.
func TestQueue(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(5000) {
		random := rand.New(rand.NewPCG(seed, 52))
		device, all := someProcesses(random)
		for _, p := range all {
			if p.Need == 0 {
				continue
			}
			before := fmt.Sprint(all)
			decision := Decide(device, all, p.ID)
			require.Equal(t, naiveDecide(device, all, p.ID), decision, "seed %d, process %d of %+v", seed, p.ID, all)
			require.Equal(t, before, fmt.Sprint(all), "seed %d", seed)
			seen[fmt.Sprint(decision.Never, decision.Wait > 0, len(decision.For) > 0, min(2, len(decision.Pause)))]++
		}
	}
	require.GreaterOrEqual(t, len(seen), 5, "kinds of decisions: %v", seen)
}

// When each process that waits was planned for by a walk over all others, this took hours.
func TestManyProcesses(t *testing.T) {
	const processes = 12000
	begun, all := time.Now(), []Process(nil)
	for id := range processes {
		p := Process{ID: id, AtLeast: -1, Away: -1, Priority: float64(id % 3)}
		if id%4 == 0 {
			p.Tags = []Tag{{Name: "weights", Bytes: 1 << 30}}
		} else {
			p.Need, p.Waited = 1<<30, time.Duration(id)*time.Microsecond
		}
		all = append(all, p)
	}
	require.NotEmpty(t, Decide(Device{}, all, processes-1).For)
	tags := Process{ID: processes, AtLeast: 0, Away: -1, Idle: time.Minute}
	for i := range processes {
		tags.Tags = append(tags.Tags, Tag{Name: fmt.Sprint("tag ", i), Bytes: 1 << 20})
	}
	need := Process{ID: processes + 1, Need: (processes - 1) << 20, AtLeast: -1, Away: -1}
	require.Len(t, Decide(Device{}, []Process{tags, need}, need.ID).Pause[0].Tags, processes-1)
	require.Less(t, time.Since(begun), time.Minute)
}

// Among many processes an explanation is a line that can be read, and all lines of a page come from one look.
func TestAnExplanationNamesSome(t *testing.T) {
	const processes = 200
	var all []fleet.Process
	for pid := 1; pid <= processes; pid++ {
		device := stats.Device{UUID: "GPU-1", TotalBytes: processes << 30, Tags: []stats.Tag{{Tag: "default"}}}
		p := fleet.Process{Here: pid, ProcessState: control.ProcessState{PID: pid, Gated: true,
			Share: &control.Share{AtLeast: 3600, Waited: float64(processes - pid), UUID: "GPU-1", Bytes: 1 << 30}}}
		if pid == processes {
			p.Share.Waited, device.Tags[0].PhysicalBytes = -1, processes<<30
		}
		p.Stats.Devices = []stats.Device{device}
		all = append(all, p)
	}
	explanation := NewExplanation(all)
	for _, p := range all[:processes-1] {
		lines := explanation.Waits(p)
		require.Equal(t, NewExplanation(all).Waits(p), lines)
		require.Len(t, lines, 1)
		if p.PID > 9 {
			require.Contains(t, lines[0], fmt.Sprintf("it waits for 1, 2, 3, 4, 5, 6, 7, 8 and %d more, at most", p.PID-9))
		}
	}
	require.Empty(t, explanation.Waits(all[processes-1]))
}

// someProcesses returns a device and up to eight processes, of few sizes and times, so that many are equal.
func someProcesses(random *rand.Rand) (device Device, all []Process) {
	seldom := func() bool { return random.IntN(5) == 0 }
	device = Device{Free: uint64(random.IntN(6)), Reserve: uint64(random.IntN(3))}
	for id := range 1 + random.IntN(8) {
		p := Process{ID: id + 1, Priority: float64(random.IntN(2)), AtLeast: -1, Away: -1, Pinned: seldom(), Busy: seldom(),
			Idle: time.Duration(random.IntN(3)) * Grace, Ran: time.Duration(random.IntN(3)) * time.Second,
			Price: time.Duration(random.IntN(3)) * 40 * time.Millisecond}
		for tag := range random.IntN(3) {
			p.Tags = append(p.Tags, Tag{Name: fmt.Sprint(tag), Bytes: uint64(random.IntN(4))})
		}
		if random.IntN(2) == 0 {
			p.Need, p.Waited, p.Grows = uint64(1+random.IntN(6)), time.Duration(random.IntN(9))*time.Second, seldom()
		} else if seldom() {
			p.Grew = time.Duration(random.IntN(3)) * 30 * time.Millisecond
		}
		if seldom() {
			p.AtLeast = time.Duration(random.IntN(3)) * time.Second
		}
		all = append(all, p)
	}
	return device, all
}

// Shares returns the time in which all other processes take their turns, and every process swaps once.
func Shares(all []Process, id int) time.Duration {
	sum := turnsOf(all)
	for _, p := range all {
		if p.ID == id {
			sum -= p.Turn()
		}
	}
	return sum
}

// naiveDecide says what comes next for the process id, which has a Need.
func naiveDecide(device Device, all []Process, id int) Decision {
	highest := slices.MaxFunc(all, func(x, y Process) int { return cmp.Compare(x.Priority, y.Priority) }).Priority
	waiting := slices.DeleteFunc(slices.Clone(all), func(p Process) bool { return p.Need == 0 })
	for i, p := range waiting {
		if p.Waited > Shares(all, p.ID) { // overdue
			waiting[i].Priority = highest
		}
	}
	slices.SortFunc(waiting, Process.before)
	at := slices.IndexFunc(waiting, func(p Process) bool { return p.ID == id })
	own := waiting[at]
	d := naivePlan(device, all, own)
	if d.Never {
		return d
	}
	takes := d.Wait > 0 || len(d.Pause) > 0 // memory from others
	var first []int
	// A process that grows may need as much again as it has. The need of two growing processes is unknown.
	short := func(p Process) bool { return own.Grows || device.Free < own.Need+p.Held() }
	for _, w := range waiting[:at] {
		theirs := naivePlan(device, all, w)
		if theirs.Never || theirs.Wait == unknown {
			continue
		}
		grows := w.grown() > 0 && theirs.Wait == 0 && short(w)
		if takes || grows || naiveDelays(device, all, own, w, theirs) {
			first = append(first, w.ID)
		}
	}
	for _, p := range all {
		if p.Need == 0 && p.Grew > 0 && p.Grew < p.price() && short(p) && own.before(p) > 0 {
			first, d.Wait = append(first, p.ID), max(d.Wait, p.price()-p.Grew)
		}
	}
	if len(first) > 0 {
		return Decision{Wait: max(d.Wait, Grace), For: first}
	}
	return d
}

// naiveDelays reports whether w, which is ahead of own and has the plan theirs, waits longer if own goes on.
func naiveDelays(device Device, all []Process, own, w Process, theirs Decision) bool {
	running := own
	running.Tags = append(slices.Clone(own.Tags), Tag{Bytes: own.Need})
	running.Need, running.Ran, running.Idle = 0, 0, 0
	with := slices.Clone(all)
	with[slices.IndexFunc(with, func(p Process) bool { return p.ID == own.ID })] = running
	device.Free -= own.Need
	later := naivePlan(device, with, w)
	return later.Never || later.Wait > theirs.Wait
}

// naivePlan says what comes next for a process if no other waits. It leaves the reserve free if it can.
func naivePlan(device Device, all []Process, own Process) Decision {
	need := own.Need + device.Reserve
	if device.Free >= need {
		return Decision{}
	}
	missing := need - device.Free
	var others []Process
	var held uint64
	for _, p := range all {
		if bytes := p.Held(); p.ID != own.ID && !p.Pinned && bytes > 0 {
			held += bytes
			if !p.Busy {
				others = append(others, p)
			}
		}
	}
	switch {
	case held < missing && device.Reserve > 0:
		return naivePlan(Device{Free: device.Free}, all, own)
	case held < missing:
		return Decision{Never: true}
	}
	slices.SortStableFunc(others, func(x, y Process) int { return cmp.Compare(x.due(), y.due()) })
	var reached uint64
	for i, p := range others {
		if reached += p.Held(); reached < missing {
			continue
		}
		if p.due() == 0 {
			return Decision{Pause: naiveChoose(missing, others)}
		}
		d := Decision{Wait: p.due()}
		for _, p := range others[:i+1] {
			if p.due() > 0 {
				d.For = append(d.For, p.ID)
			}
		}
		return d
	}
	d := Decision{Wait: unknown}
	for _, p := range all {
		if p.Busy && p.ID != own.ID {
			d.For = append(d.For, p.ID)
		}
	}
	return d
}

func naiveChoose(missing uint64, others []Process) []Part {
	var chosen []unit
	var bytes uint64
	for _, u := range unitsOf(others) {
		if bytes < missing && u.tag.Bytes > 0 {
			chosen, bytes = append(chosen, u), bytes+u.tag.Bytes
		}
	}
	for i := len(chosen) - 1; i >= 0; i-- { // not more than is needed
		if left := bytes - chosen[i].tag.Bytes; left >= missing {
			chosen, bytes = slices.Delete(chosen, i, i+1), left
		}
	}
	return naiveParts(chosen)
}

func naiveParts(chosen []unit) (found []Part) {
	for _, u := range chosen {
		i := slices.IndexFunc(found, func(p Part) bool { return p.ID == u.of.ID })
		if i < 0 {
			i = len(found)
			found = append(found, Part{ID: u.of.ID, Idle: !u.work && u.of.Need == 0})
		}
		tags := append(found[i].Tags, u.tag.Name)
		if !slices.ContainsFunc(u.of.Tags, func(t Tag) bool { return t.Bytes > 0 && !slices.Contains(tags, t.Name) }) {
			tags = nil // all
		}
		found[i].Tags = tags
	}
	return found
}
