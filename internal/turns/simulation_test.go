package turns_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/turns"
)

const gib = 1 << 30

// program is a simulated program: it needs all of its memory for each piece of work.
type program struct {
	turns.Process
	bytes     uint64
	holds     uint64          // of them so far, on the device or paused
	grows     uint64          // bytes that it takes at a time, one tick after the other, before it works
	price     time.Duration   // of a pause and a resume of all bytes, half each
	work      []time.Duration // pieces
	gaps      []time.Duration // before each piece: without work
	closed    bool            // a gap begins when the piece before is done, else at the program's start
	resident  bool
	began     time.Duration // since when it is resident
	ran       time.Duration // since then, without waits for more memory
	grew      time.Duration // when it last got more for which it had waited
	wants     time.Duration // when its next piece comes
	done      time.Duration // of its current piece
	pausedAt  time.Duration
	worked    time.Duration // when it last had work
	waits     []time.Duration
	swaps     int
	end       time.Duration
	firstWait bool
}

func (p *program) has() bool { return len(p.work) > 0 }

// wantsMore reports whether it is on the device and needs more memory there.
func (p *program) wantsMore() bool { return p.resident && p.holds < p.bytes }

// half is the time that a pause takes, or a resume.
func (p *program) half() time.Duration {
	return time.Duration(float64(p.price/2) * float64(p.holds) / float64(p.bytes))
}

// device is one simulated device; tick is the resolution.
type device struct {
	total    uint64
	programs []*program
	now      time.Duration
	swapping time.Duration // spent so far, one swap at a time
	swapEnd  time.Duration
	coming   *program
	idle     time.Duration // no program worked although one could have
}

const tick = 5 * time.Millisecond

func (d *device) free() uint64 {
	free := d.total
	for _, p := range d.programs {
		if p.resident || p == d.coming {
			free -= p.holds
		}
	}
	return free
}

// view is what the policy sees.
func (d *device) view() (all []turns.Process) {
	for _, p := range d.programs {
		v := p.Process
		if p.resident {
			v.Tags = []turns.Tag{{Name: "all", Bytes: p.holds}}
			v.Ran, v.Idle = p.ran, d.now-p.worked
			if p.grew > 0 && d.now >= p.grew {
				v.Grew = d.now - p.grew + 1
			}
			if p.wantsMore() {
				v.Need, v.Waited = p.grows, d.now-p.worked
			}
		} else if p.has() && d.now >= p.wants && p != d.coming {
			v.Need, v.Waited = max(p.holds, p.grows), d.now-p.wants
		}
		v.Grows = p.holds < p.bytes
		if p.swaps > 0 || p.grows == 0 {
			v.Price = time.Duration(float64(p.price) * float64(max(p.holds, p.grows)) / float64(p.bytes))
		}
		if p == d.coming {
			v.Tags, v.Busy, v.Need = []turns.Tag{{Name: "all", Bytes: p.holds}}, true, 0
		}
		all = append(all, v)
	}
	return all
}

// decide chooses the process that comes, or nil if none comes now, and the processes that go for it.
type decide func(d *device) (in *program, out []*program)

func (d *device) of(id int) *program {
	return d.programs[slices.IndexFunc(d.programs, func(p *program) bool { return p.ID == id })]
}

// bySharing is the policy itself.
func bySharing(d *device) (*program, []*program) {
	all := d.view()
	for i := range all { // a different one asks first each time
		p := all[(i+int(d.now/tick))%len(all)]
		if p.Need == 0 {
			continue
		}
		if one := d.of(p.ID); (one.resident || one.holds == 0) && d.free() >= p.Need {
			return one, nil // an allocation that succeeds asks no other
		}
		decision := turns.Decide(turns.Device{Free: d.free()}, all, p.ID)
		if decision.Never || decision.Wait > 0 {
			continue
		}
		var out []*program
		for _, part := range decision.Pause {
			out = append(out, d.of(part.ID))
		}
		return d.of(p.ID), out
	}
	return nil, nil
}

// byAge pauses the first program of an order as soon as another wants memory, after a slice.
func byAge(slice time.Duration, age func(d *device, p *program) time.Duration) decide {
	return func(d *device) (*program, []*program) {
		var in *program
		for _, p := range d.programs {
			if !p.resident && p != d.coming && p.has() && d.now >= p.wants && (in == nil || p.wants < in.wants) {
				in = p
			}
		}
		if in == nil {
			return nil, nil
		}
		there := slices.DeleteFunc(slices.Clone(d.programs), func(p *program) bool {
			return !p.resident || d.now-p.began < slice
		})
		slices.SortFunc(there, func(x, y *program) int { return cmp.Compare(age(d, y), age(d, x)) })
		free := d.free()
		for i := range there {
			if free >= in.bytes {
				return in, there[:i]
			}
			free += there[i].bytes
		}
		if free >= in.bytes {
			return in, there
		}
		return nil, nil
	}
}

func lru(d *device, p *program) time.Duration   { return d.now - p.worked }
func robin(d *device, p *program) time.Duration { return d.now - p.began }

// run lets programs run to their ends, and returns how long that took.
func (d *device) run(by decide) time.Duration {
	for d.step(by) {
		d.now += tick
	}
	return d.now
}

func (d *device) step(by decide) (more bool) {
	if d.coming != nil && d.now >= d.swapEnd {
		p := d.coming
		if !p.resident {
			p.resident, p.began, p.ran, p.holds = true, d.now, 0, max(p.holds, p.grows)
		} else {
			p.holds += p.grows
		}
		p.worked, d.coming = d.now, nil
	}
	working := false
	for _, p := range d.programs {
		more = more || p.has()
		if !p.wantsMore() {
			p.ran += tick
		}
		if !p.resident || !p.has() || d.now < p.wants || p.wantsMore() || p == d.coming {
			continue
		}
		if !p.firstWait {
			p.waits, p.firstWait = append(p.waits, d.now-p.wants), true
		}
		working = true
		p.worked = d.now
		if p.done += tick; p.done >= p.work[0] {
			p.work, p.done, p.firstWait = p.work[1:], 0, false
			if p.end = d.now; len(p.work) == 0 {
				p.resident = false // it ends
				continue
			}
			if next := p.gaps[0]; p.closed {
				p.wants = d.now + next
			} else {
				p.wants += next
			}
			p.gaps = p.gaps[1:]
		}
	}
	if !working && slices.ContainsFunc(d.programs, func(p *program) bool { return p.has() && d.now >= p.wants }) {
		d.idle += tick
	}
	if d.coming == nil {
		if in, out := by(d); in != nil {
			cost := time.Duration(0)
			if !in.resident {
				cost = in.half()
			}
			for _, o := range out {
				if o.has() && (o.done > 0 || o.wantsMore()) {
					o.wants = d.now // its next call waits
					o.firstWait = false
				}
				o.resident, o.pausedAt = false, d.now
				o.swaps++
				cost += o.half()
			}
			if in.swaps > 0 {
				in.Away = max(0, in.wants-in.pausedAt)
			}
			if in.resident && len(out) > 0 {
				in.grew = d.now + cost
			}
			d.coming, d.swapEnd = in, d.now+cost
			d.swapping += cost
		}
	}
	return more
}

func trainings(n int, bytes uint64, work, price time.Duration) (made []*program) {
	for i := range n {
		p := &program{bytes: bytes, holds: bytes, price: price, work: []time.Duration{work}, closed: true}
		p.ID, p.AtLeast, p.Away = i+1, -1, -1
		made = append(made, p)
	}
	return made
}

// servers have requests at random.
func servers(random *rand.Rand, n, requests int, bytes uint64, work, gap, price time.Duration) (made []*program) {
	for i := range n {
		p := &program{bytes: bytes, holds: bytes, price: price, wants: time.Duration(random.ExpFloat64() * float64(gap))}
		p.ID, p.AtLeast, p.Away = i+1, -1, -1
		for range requests {
			p.work = append(p.work, work)
			p.gaps = append(p.gaps, time.Duration(random.ExpFloat64()*float64(gap)))
		}
		made = append(made, p)
	}
	return made
}

func work(programs []*program) (sum time.Duration) {
	for _, p := range programs {
		for _, w := range p.work {
			sum += w
		}
	}
	return sum
}

func longestWait(programs []*program) (most time.Duration) {
	for _, p := range programs {
		most = max(most, slices.Max(p.waits))
	}
	return most
}

// Trainings that always have work take at most a tenth more time than one after another, however long they are. No
// training waits longer than the others may run. They take less time than with the best slices of round robin, and than
// with LRU without turns.
func TestTrainings(t *testing.T) {
	hermetic.Thorough(t)
	for i, n := range []int{2, 3, 5, 5} {
		make := func() *device {
			length := []time.Duration{time.Minute, 10 * time.Minute}[i/3]
			return &device{total: 141 * gib, programs: trainings(n, 80*gib, length, time.Second)}
		}
		d := make()
		alone := work(d.programs)
		bound := turns.Shares(d.view(), 1)
		took := d.run(bySharing)
		lost := float64(took-alone) / float64(alone)
		require.Less(t, lost, 0.1, "%d trainings", n)
		require.LessOrEqual(t, longestWait(d.programs), bound)
		ends := slices.MinFunc(d.programs, func(x, y *program) int { return cmp.Compare(x.end, y.end) }).end
		require.Greater(t, ends, took*3/4, "they progress alike")
		r := make()
		took = r.run(byAge(time.Second, robin))
		t.Logf("%d trainings: lost %.3f, longest wait %v; round robin of 1 s: lost %.3f", n, lost,
			longestWait(d.programs), float64(took-alone)/float64(alone))
	}
}

// Trainings that all take their memory in small steps at the same time: each is paused once after each turn, and once
// before that, while it grows.
func TestGrowth(t *testing.T) {
	hermetic.Thorough(t)
	for i, price := range []time.Duration{1200, 1200, 2700, 2700, 4500, 4500} {
		total := []uint64{77 * gib, 138 * gib}[i%2]
		price *= time.Millisecond
		d := &device{total: total, programs: trainings(5, 60*gib, 80*time.Second, price)}
		for _, p := range d.programs {
			p.holds, p.grows = 0, gib/4
		}
		alone := work(d.programs)
		for d.step(bySharing) && d.now < 2*alone {
			d.now += tick
		}
		took := d.now
		swaps := 0
		for _, p := range d.programs {
			swaps += p.swaps
		}
		t.Logf("%d GiB, %v: lost %.3f, %d swaps", total/gib, price, (took-alone).Seconds()/alone.Seconds(), swaps)
		turns := int(80 * time.Second / (12 * price))
		require.LessOrEqual(t, swaps, 5*(turns+1))
		require.Less(t, (took-alone).Seconds()/alone.Seconds(), 0.1)
	}
}

// Two of five fit: the device is never without work.
func TestNeverIdle(t *testing.T) {
	d := &device{total: 141 * gib, programs: trainings(5, 60*gib, time.Minute, time.Second)}
	alone := work(d.programs)
	took := d.run(bySharing)
	require.Less(t, took, alone/2*12/10+time.Minute)
	require.Less(t, d.idle, took/20)
}

// Servers that answer now and then: an idle one gives way at once.
func TestServers(t *testing.T) {
	hermetic.Thorough(t)
	const price = 650 * time.Millisecond
	for _, gap := range []time.Duration{20 * time.Second, 5 * time.Second} {
		results := map[string]time.Duration{}
		policies := map[string]decide{"sharing": bySharing, "lru": byAge(0, lru), "robin": byAge(time.Second, robin)}
		for name, by := range policies {
			random := rand.New(rand.NewPCG(1, 2))
			d := &device{total: 141 * gib, programs: servers(random, 3, 300, 90*gib, 200*time.Millisecond, gap, price)}
			d.run(by)
			var waits []time.Duration
			for _, p := range d.programs {
				waits = append(waits, p.waits...)
			}
			slices.Sort(waits)
			results[name] = waits[len(waits)/2]
			t.Logf("gap %v, %s: median wait %v, 99%% %v, longest %v; %.3f of the time in swaps", gap, name,
				waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1], d.swapping.Seconds()/d.now.Seconds())
			if name == "sharing" && gap > 10*time.Second {
				require.LessOrEqual(t, waits[len(waits)/2], price+turns.Grace+2*tick)
			}
		}
		require.LessOrEqual(t, results["sharing"], results["robin"])
	}
}

// A short gap in a training's work costs one swap, not one each time.
func TestGaps(t *testing.T) {
	p := trainings(2, 80*gib, 0, time.Second)
	for _, p := range p {
		for range 500 {
			p.work, p.gaps = append(p.work, 100*time.Millisecond), append(p.gaps, 30*time.Millisecond)
		}
	}
	d := &device{total: 141 * gib, programs: p}
	took := d.run(bySharing)
	require.Less(t, d.swapping, took/6)
	t.Logf("%.3f of the time in swaps", d.swapping.Seconds()/took.Seconds())
}

// A server that starts works on the device in short pieces. Its swap is cheap, those of two busy programs are not. It
// keeps its turn in the gaps between the pieces, or it would wait for a turn of the others at each.
func TestAStartBesideBusyPrograms(t *testing.T) {
	const price, theirs = 400 * time.Millisecond, 1400 * time.Millisecond
	random := rand.New(rand.NewPCG(1, 2))
	server := trainings(1, 128*gib, 0, price)[0]
	server.work, server.wants = nil, 5*time.Second
	var alone time.Duration
	for range 30 {
		piece, gap := time.Duration(20+random.IntN(200))*time.Millisecond, time.Duration(random.ExpFloat64()*6e8)
		server.work, server.gaps = append(server.work, piece), append(server.gaps, gap)
		alone += piece + gap
	}
	others := trainings(2, 24*gib, 0, theirs)
	for i, p := range others {
		p.ID, p.work = i+2, nil
		for range 1000 {
			p.work, p.gaps = append(p.work, 2*tick), append(p.gaps, time.Second)
		}
	}
	d := &device{total: 141 * gib, programs: append(others, server)}
	for len(server.work) > 0 {
		require.True(t, d.step(bySharing))
		d.now += tick
	}
	t.Logf("%v alone, %v beside them, %d swaps", alone, server.end-5*time.Second, server.swaps)
	require.LessOrEqual(t, server.swaps, int(alone/(12*price))+2)
	require.Less(t, server.end, time.Duration(server.swaps+1)*(12*theirs+2*theirs+price)+alone)
}

// No wait is longer than its bound, whatever the sizes, prices and priorities are.
func TestBound(t *testing.T) {
	hermetic.Thorough(t)
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 7))
		var all []*program
		for i := range 2 + random.IntN(4) {
			p := trainings(1, uint64(20+random.IntN(110))*gib, 0, time.Duration(100+random.IntN(900))*time.Millisecond)[0]
			p.ID, p.Priority = i+1, float64(random.IntN(3))
			if random.IntN(2) == 0 {
				p.grows = p.bytes / uint64(1+random.IntN(20))
				p.bytes = p.bytes / p.grows * p.grows
				p.holds, p.price = p.bytes, turns.Estimate(p.bytes)
			}
			for range 1 + random.IntN(8) {
				p.work = append(p.work, time.Duration(random.IntN(20000))*time.Millisecond+tick)
				p.gaps = append(p.gaps, time.Duration(random.IntN(3)*random.IntN(3000))*time.Millisecond)
			}
			all = append(all, p)
		}
		d := &device{total: 141 * gib, programs: all}
		bounds := map[int]time.Duration{}
		for _, p := range all {
			view := d.view()
			for i := range view {
				view[i].Price = all[i].price
			}
			bounds[p.ID] = turns.Shares(view, p.ID)
			if slices.ContainsFunc(all, func(q *program) bool { return q.Priority != p.Priority }) {
				bounds[p.ID] *= 2
			}
		}
		for _, p := range all {
			if p.grows > 0 {
				p.holds = 0
			}
		}
		d.run(bySharing)
		for _, p := range all {
			require.LessOrEqual(t, slices.Max(p.waits), bounds[p.ID]+time.Duration(len(all))*(turns.Grace+2*tick),
				"seed %d, program %d", seed, p.ID)
		}
	}
}

// Against the best possible choice of victims, found by trying all: the fewest bytes.
func TestChoice(t *testing.T) {
	worst := 1.0
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 3))
		asker := turns.Process{ID: 1, Need: uint64(1+random.IntN(100)) * gib, Waited: time.Second, AtLeast: -1, Away: -1}
		all := []turns.Process{asker}
		for i := range 1 + random.IntN(5) {
			p := turns.Process{ID: i + 2, AtLeast: 0, Away: -1, Idle: time.Minute}
			for tag := range 1 + random.IntN(2) {
				p.Tags = append(p.Tags, turns.Tag{Name: fmt.Sprint(tag), Bytes: uint64(1+random.IntN(40)) * gib})
			}
			all = append(all, p)
		}
		free := uint64(random.IntN(20)) * gib
		decision := turns.Decide(turns.Device{Free: free}, all, 1)
		best, possible := cheapest(free, all)
		require.Equal(t, !possible, decision.Never, "seed %d", seed)
		if !possible {
			continue
		}
		bytes := free
		for _, part := range decision.Pause {
			for _, tag := range all[part.ID-1].Tags {
				if part.Tags == nil || slices.Contains(part.Tags, tag.Name) {
					bytes += tag.Bytes
				}
			}
		}
		require.GreaterOrEqual(t, bytes, asker.Need)
		require.Equal(t, best == 0, bytes == free, "seed %d: memory moves only if it must", seed)
		if best > 0 {
			worst = max(worst, float64(bytes-free)/float64(best))
		}
	}
	require.Less(t, worst, 3.0, "times the bytes of the best choice")
}

// cheapest returns the least bytes that make room, over all choices of tags.
func cheapest(free uint64, all []turns.Process) (best uint64, possible bool) {
	var tags []turns.Tag
	for _, p := range all[1:] {
		tags = append(tags, p.Tags...)
	}
	for chosen := range 1 << len(tags) {
		bytes := free
		for i, tag := range tags {
			if chosen>>i&1 == 1 {
				bytes += tag.Bytes
			}
		}
		if bytes >= all[0].Need && (!possible || bytes-free < best) {
			best, possible = bytes-free, true
		}
	}
	return best, possible
}

// The reserve stays free where others can make room for that, and else does not keep a process from memory.
func TestReserve(t *testing.T) {
	device := turns.Device{Free: 12 * gib, Reserve: gib}
	asks := turns.Process{ID: 1, Need: 12 * gib, AtLeast: -1}
	other := turns.Process{ID: 2, AtLeast: -1, Away: -1, Idle: time.Minute,
		Tags: []turns.Tag{{Name: "a", Bytes: gib / 2}, {Name: "b", Bytes: gib}}}
	decide := func() turns.Decision { return turns.Decide(device, []turns.Process{asks, other}, 1) }
	require.Equal(t, turns.Decision{Pause: []turns.Part{{ID: 2, Tags: []string{"b"}, Idle: true}}}, decide())
	other.Idle = 0
	require.Positive(t, decide().Wait)
	other.Pinned = true
	require.Equal(t, turns.Decision{}, decide())
	other.Pinned, other.Tags, other.Idle = false, other.Tags[:1], time.Minute
	require.Equal(t, turns.Decision{}, decide(), "all of it is not enough")
	device.Free -= gib / 2
	require.Equal(t, turns.Decision{Pause: []turns.Part{{ID: 2, Idle: true}}}, decide())
}
