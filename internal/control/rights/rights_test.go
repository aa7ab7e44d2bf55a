package rights

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// A process has two tags, and three clients that make every request in any order, as package server allows: the process
// carries out one request at a time, and clients may keep or vanish during it. The test visits every state that can be
// reached.

const (
	clients = 3
	tags    = 2
)

var tagNames = [tags]string{"a", "b"}

// set has a bit for each client.
type set uint8

func (s set) has(c int) bool { return c >= 0 && s&(1<<c) != 0 }
func (s set) with(c int) set { return s | 1<<c }
func (s set) less(c int) set { return s &^ (1 << c) }

// request is the request that is carried out.
type request struct {
	op     string // "": nothing
	client int    // -1: the client has left
	tag    int    // tags means all
	had    bool   // the pause or undo began with a hold, to be released when it is done
	undoes set    // tags
}

// world is everything besides the Rights; all of it is compared.
type world struct {
	alive   set
	paused  [tags]bool
	holds   int  // of the process
	held    bool // back, before collectives
	running request
	// The answers that clients got, by which the Rights are judged.
	holding, aligning set
	wants             [tags]set
	kept              [tags]bool
	bars              [tags]set // whose pause keeps the program from resuming it
}

// keeper is the client that stands for what others keep.
const keeper = clients

func covers(tag, t int) bool { return tag == tags || tag == t }

func named(tag int) *string {
	if tag == tags {
		return nil
	}
	return &tagNames[tag]
}

// client returns a client's number in the Rights.
func client(c int) int { return c + 1 }

// state is a world with its Rights.
type state struct {
	world
	rights Rights[int]
}

func (s *state) clone() *state {
	n := *s
	n.rights.holders = slices.Clone(s.rights.holders)
	n.rights.paused = map[string][]int{}
	for name, wanting := range s.rights.paused {
		n.rights.paused[name] = slices.Clone(wanting)
	}
	n.rights.bars = slices.Clone(s.rights.bars)
	return &n
}

func members(of []int) (all set) {
	for _, c := range of {
		all = all.with(c - 1)
	}
	return all
}

// orders are the orders in which the clients can be numbered.
var orders = [][clients]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}

func (s set) in(order [clients]int) (other set) {
	for c, as := range order {
		other |= s >> c & 1 << as
	}
	return other | s&(1<<keeper)
}

// key is the whole of a state; both halves record which clients hold and align (see wrong).
type key struct {
	world
	known   [tags]bool
	wanting [tags]set
}

// key numbers the clients in another order.
func (s *state) key(order [clients]int) key {
	k := key{world: s.world}
	if k.running.op != "" && k.running.client >= 0 {
		k.running.client = order[k.running.client]
	}
	for _, all := range []*set{&k.alive, &k.holding, &k.aligning, &k.wants[0], &k.wants[1], &k.bars[0], &k.bars[1]} {
		*all = all.in(order)
	}
	for t, name := range tagNames {
		wanting, known := s.rights.paused[name]
		k.known[t], k.wanting[t] = known, members(wanting).in(order)
	}
	return k
}

// release does what a client's end requires; an align in progress is released when it is done.
func (s *state) release(r Orphaned) {
	if r.Hold {
		s.holds--
	}
	if r.Align && s.running.op != "align" {
		s.held = false
	}
}

// move is the step that led to a state.
type move struct {
	client  int
	what    string
	request request
}

// steps returns all next states, with the move that led to each.
func (s *state) steps() (found []*state, moves []move) {
	add := func(m move, do func(*state)) {
		n := s.clone()
		do(n)
		found, moves = append(found, n), append(moves, m)
	}
	for c := range clients {
		if !s.alive.has(c) {
			continue
		}
		add(move{client: c, what: "vanishes"}, func(n *state) {
			n.alive, n.holding, n.aligning = n.alive.less(c), n.holding.less(c), n.aligning.less(c)
			for t := range tags {
				n.wants[t], n.bars[t] = n.wants[t].less(c), n.bars[t].less(c)
			}
			n.release(n.rights.Leave(client(c)))
			if n.running.client == c {
				n.running.client = -1
			}
		})
		if s.running.op != "" && s.running.client == c {
			continue
		}
		add(move{client: c, what: "keeps"}, func(n *state) {
			for t := range tags {
				if n.wants[t].has(c) {
					n.kept[t], n.wants[t] = n.paused[t], 0
				}
				if n.bars[t].has(c) {
					n.bars[t] = n.bars[t].less(c).with(keeper)
				}
			}
			n.aligning = n.aligning.less(c)
			n.release(n.rights.Keep(client(c), client(keeper), []int{client(keeper)}))
		})
	}
	for t := range tags {
		if s.paused[t] && s.bars[t] == 0 {
			// No client learns of it.
			add(move{client: -1, what: "the program resumes " + tagNames[t]}, func(n *state) {
				n.paused[t], n.kept[t] = false, false
			})
		}
	}
	if s.running.op != "" {
		s.endings(add)
		return found, moves
	}
	begin := func(r request) {
		add(move{r.client, "begins", r}, func(n *state) {
			n.running = r
			n.begin()
		})
	}
	for c := range clients {
		if !s.alive.has(c) {
			continue
		}
		begin(request{op: "hold", client: c})
		begin(request{op: "undo", client: c})
		begin(request{op: "align", client: c})
		for _, tag := range []int{0, 1, tags} {
			begin(request{op: "pause", client: c, tag: tag})
			begin(request{op: "resume", client: c, tag: tag})
		}
	}
	if len(s.rights.Due()) > 0 {
		begin(request{op: "undo", client: -1})
	}
	return found, moves
}

func (s *state) begin() {
	r := &s.running
	var due []string
	switch {
	case r.op == "pause":
		r.had = s.rights.Pauses(client(r.client))
		s.holding = s.holding.less(r.client)
	case r.op == "align" && !s.rights.Align(client(r.client)):
		s.running = request{} // refused
	case r.op == "align":
		s.aligning = s.aligning.with(r.client)
	case r.op == "undo" && r.client < 0:
		due = s.rights.Due()
	case r.op == "undo":
		s.holding, s.aligning = s.holding.less(r.client), s.aligning.less(r.client)
		orphaned := s.rights.Undo(client(r.client))
		r.had, due = orphaned.Hold, orphaned.Due
		orphaned.Hold = false
		s.release(orphaned)
		for t := range tags {
			if slices.Contains(due, tagNames[t]) {
				s.bars[t] = s.bars[t].with(r.client)
			} else {
				s.wants[t], s.bars[t] = s.wants[t].less(r.client), s.bars[t].less(r.client)
			}
		}
	}
	for t, name := range tagNames {
		if slices.Contains(due, name) {
			r.undoes = r.undoes.with(t)
		}
	}
}

// resumed makes a tag active again.
func (s *state) resumed(t int) { s.paused[t], s.wants[t], s.kept[t], s.bars[t] = false, 0, false, 0 }

// endings adds every way in which the running request can end.
func (s *state) endings(add func(move, func(*state))) {
	done := func(how string, do func(*state, request)) {
		add(move{s.running.client, how, s.running}, func(n *state) {
			r := n.running
			n.running = request{}
			if r.had {
				n.holds--
			}
			do(n, r)
		})
	}
	switch s.running.op {
	case "hold":
		done("is done", func(n *state, r request) {
			n.holds++
			if r.client >= 0 {
				n.holding = n.holding.with(r.client)
			}
			if !n.rights.Held(client(r.client)) {
				n.holds--
			}
		})
	case "align":
		done("is done", func(n *state, r request) { n.held = r.client >= 0 })
	case "pause":
		pause := func(n *state, r request, ok bool) {
			var took []string
			for t, name := range tagNames {
				if covers(r.tag, t) && !n.paused[t] {
					n.paused[t] = true
					took = append(took, name)
				}
			}
			if n.rights.Took(client(r.client), took); ok {
				n.rights.Paused(client(r.client), named(r.tag))
			} else {
				n.rights.Failed(client(r.client), took)
			}
			for t := range tags {
				if covers(r.tag, t) && !n.kept[t] && r.client >= 0 &&
					(ok || slices.Contains(took, tagNames[t])) {
					n.wants[t] = n.wants[t].with(r.client)
				}
				if covers(r.tag, t) && r.client >= 0 && (ok || slices.Contains(took, tagNames[t])) {
					n.bars[t] = n.bars[t].with(r.client)
				}
			}
		}
		done("is done", func(n *state, r request) { pause(n, r, true) })
		done("fails late", func(n *state, r request) { pause(n, r, false) })
	case "resume":
		done("is done", func(n *state, r request) {
			for t := range tags {
				if covers(r.tag, t) {
					n.resumed(t)
				}
			}
			if r.tag == tags {
				n.rights.ResumedAll()
			} else {
				n.rights.Resumed(tagNames[r.tag])
			}
		})
	case "undo":
		for succeed := range set(1 << tags) { // the tags for which there is memory
			if succeed&^s.running.undoes != 0 {
				continue
			}
			words := []string{"does nothing", "does the first", "does the second", "does both"}
			done(words[succeed], func(n *state, r request) {
				for t := range tags {
					if !succeed.has(t) {
						continue
					}
					if others := n.wants[t]; n.paused[t] && r.client >= 0 && others.less(r.client) != 0 ||
						n.paused[t] && r.client < 0 && others != 0 || n.kept[t] {
						panic(fmt.Sprintf("tag %d is resumed, which others want paused: %+v", t, n.world))
					}
					n.resumed(t)
					n.rights.Resumed(tagNames[t])
				}
			})
		}
	}
	done("fails", func(n *state, r request) { n.held = n.held && (r.op != "align" || r.client >= 0) })
}

// wrong describes what is wrong, "" if nothing is.
func (s *state) wrong() string {
	holds := 0
	for c := range clients {
		if s.holding.has(c) {
			holds++
		}
	}
	if s.running.had {
		holds++
	}
	if members(s.rights.holders) != s.holding || s.holds != holds {
		return "holds are not those of the clients that hold"
	}
	if c := s.rights.aligns; c > 0 && s.aligning != set(0).with(c-1) || c == 0 && s.aligning != 0 {
		return "another client aligns"
	}
	if s.held && s.aligning == 0 && s.running.op != "align" {
		return "threads are held back for no client"
	}
	for t, name := range tagNames {
		wanting, known := s.rights.paused[name]
		var bars set
		for _, b := range s.rights.Bars() {
			if b.Covers(name) {
				bars = bars.with(b.Client - 1)
			}
		}
		switch {
		case bars != s.bars[t]:
			return "the program is barred by others than those whose pause it is"
		case s.kept[t] && !members(wanting).has(keeper):
			return "kept, and no client stands for that"
		case members(wanting)&^s.alive&^(1<<keeper) != 0:
			return "a client that has gone has rights"
		case s.paused[t] && !s.kept[t] && !known:
			return "paused, and no client is responsible"
		case s.paused[t] && !s.kept[t] && s.wants[t]&^members(wanting) != 0:
			return "a client's pause is not known any more"
		}
	}
	return ""
}

func TestEveryOrderOfThreeClients(t *testing.T) {
	first := &state{world: world{alive: 1<<clients - 1}}
	if hermetic.Quick {
		first.alive = 1<<2 - 1
	}
	type step struct {
		from *step
		move move
	}
	path := func(s *step) string {
		var moves []string
		for ; s.from != nil; s = s.from {
			moves = append(moves, fmt.Sprintf("%+v", s.move))
		}
		slices.Reverse(moves)
		return strings.Join(moves, "; ")
	}
	seen := map[key]*step{} // of states that differ only in the numbering of the clients, the first
	as := func(s *state) key {
		for _, order := range orders {
			if k := s.key(order); seen[k] != nil {
				return k
			}
		}
		return s.key(orders[0])
	}
	seen[as(first)] = &step{}
	ends := 0
	for queue := []*state{first}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		came := seen[as(s)]
		next, moves := s.steps()
		if s.alive == 0 && s.running.op == "" && len(s.rights.Due()) == 0 {
			ends++
			require.True(t, s.holds == 0 && !s.held && s.paused == s.kept, "%s", path(came))
		}
		for i, n := range next {
			k := as(n)
			if seen[k] != nil {
				continue
			}
			seen[k] = &step{came, moves[i]}
			if wrong := n.wrong(); wrong != "" {
				require.FailNow(t, wrong, "%s: %+v", path(seen[k]), n)
			}
			queue = append(queue, n)
		}
	}
	t.Logf("%d states, %d ends", len(seen), ends)
}

// A later kept pause takes over what it covers from an earlier one, and nothing else.
func TestTheLatestLastingPauseDecides(t *testing.T) {
	const first, second, later = 1, 2, 3
	weights, cache := "weights", "cache"
	var r Rights[int]
	covered := func(c int) (all []string) {
		for _, b := range r.Bars() {
			for _, tag := range []string{weights, cache, "another"} {
				if b.Client == c && b.Covers(tag) {
					all = append(all, tag)
				}
			}
		}
		return all
	}
	keep := func(as int, tag *string, before ...int) {
		const client = 9
		r.Took(client, []string{weights, cache})
		r.Paused(client, tag)
		r.Keep(client, as, before)
	}
	keep(first, nil)
	r.Resumed(weights)
	require.Equal(t, []string{cache, "another"}, covered(first))
	keep(second, &weights, first)
	require.Equal(t, []string{cache, "another"}, covered(first))
	require.Equal(t, []string{weights}, covered(second))

	// The client pauses all, another client resumes the weights, and only then the client keeps its pause.
	r.Paused(9, nil)
	r.Resumed(weights)
	r.Took(8, []string{weights})
	r.Paused(8, &weights)
	r.Keep(8, second, []int{first})
	r.Keep(9, later, []int{first, second})
	require.Empty(t, covered(first))
	require.Equal(t, []string{weights}, covered(second))
	require.Equal(t, []string{cache, "another"}, covered(later))
}

// A pause that fails in part, its undo and the resume of its tags take memory, and so time, in proportion to the tags.
func TestAFailedPauseOfManyTags(t *testing.T) {
	bytes := func(tags int) uint64 {
		var took []string
		for i := range tags {
			took = append(took, fmt.Sprint("tag ", i))
		}
		var r Rights[int]
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begun := time.Now()
		r.Took(1, took)
		r.Failed(1, took)
		require.Len(t, r.Undo(1).Due, tags)
		require.Len(t, r.Bars(), 1)
		require.Len(t, r.Bars()[0].Tags, tags)
		r.Resumed(took...)
		require.Empty(t, r.Bars())
		spent := time.Since(begun)
		runtime.ReadMemStats(&after)
		t.Logf("%d tags: %.1f ms, %d KiB", tags, spent.Seconds()*1000, (after.TotalAlloc-before.TotalAlloc)>>10)
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := bytes(2_000), bytes(32_000)
	require.Less(t, many, 40*few, "16 times the tags; a list in each step of a list takes 256 times as much")
}
