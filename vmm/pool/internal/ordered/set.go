// Package ordered is the core of best fit: a set of keys in order, from which the first key not below
// a wanted one is found, taken out and put back in O(log n), without garbage and without pointers for
// the collector to follow. It is a B+ tree whose nodes live in one slice.
package ordered

import "iter"

// Key orders by Major, then Minor: size and address of a free chunk, say.
type Key struct {
	Major, Minor uint64
}

func (k Key) below(other Key) bool {
	return k.Major < other.Major || k.Major == other.Major && k.Minor < other.Minor
}

// Set maps keys to values in the order of the keys. The zero value is an empty set.
type Set struct {
	nodes  []node // nodes[0] is nobody's, so that 0 can stand for none
	vacant uint32 // first node to use again
	root   uint32
	levels int // above the leaves
	length int
}

const (
	width   = 32        // entries in a node: of 16, 32 and 64 the fastest in a pool
	minimum = width / 4 // in every node but the root
)

// node is a leaf, or an inner node whose entries are its children with a lower bound of their keys.
type node struct {
	count   int32
	next    uint32 // the node to the right on this level; of a vacant one, the next vacant
	entries [width]entry
}

type entry struct {
	key   Key
	value uint32 // in an inner node: the child
}

// rank returns how many entries are below k.
func (n *node) rank(k Key) int {
	low, high := 0, int(n.count)
	for low < high {
		middle := (low + high) / 2
		if n.entries[middle].key.below(k) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// child returns which child of an inner node k belongs to.
func (n *node) child(k Key) int {
	i := n.rank(k)
	if i < int(n.count) && n.entries[i].key == k {
		return i
	}
	return max(i-1, 0)
}

func (n *node) insert(i int, e entry) {
	copy(n.entries[i+1:n.count+1], n.entries[i:n.count])
	n.entries[i] = e
	n.count++
}

func (n *node) remove(i int) {
	copy(n.entries[i:], n.entries[i+1:n.count])
	n.count--
}

// Len returns how many keys there are.
func (s *Set) Len() int { return s.length }

// Insert adds a key, which must not be in the set.
func (s *Set) Insert(k Key, value uint32) {
	if s.root == 0 {
		s.nodes = make([]node, 1, 2)
		s.root = s.fresh()
	}
	s.length++
	right := s.insert(s.root, s.levels, entry{k, value})
	if right == 0 {
		return
	}
	left := s.root
	s.root = s.fresh()
	s.levels++
	root := &s.nodes[s.root]
	root.insert(0, entry{s.nodes[left].entries[0].key, left})
	root.insert(1, entry{s.nodes[right].entries[0].key, right})
}

// insert puts e below a node and returns the node that was split off to its right, 0 if none.
func (s *Set) insert(at uint32, level int, e entry) uint32 {
	n := &s.nodes[at]
	if level > 0 {
		i := n.child(e.key)
		if e.key.below(n.entries[i].key) {
			n.entries[i].key = e.key
		}
		split := s.insert(n.entries[i].value, level-1, e)
		if split == 0 {
			return 0
		}
		e = entry{s.nodes[split].entries[0].key, split}
		n = &s.nodes[at] // may have moved
	}
	i := n.rank(e.key)
	if n.count < width {
		n.insert(i, e)
		return 0
	}
	right := s.fresh()
	n = &s.nodes[at]
	r := &s.nodes[right]
	const half = width / 2
	copy(r.entries[:], n.entries[half:])
	n.count, r.count = half, width-half
	n.next, r.next = right, n.next
	if i <= half {
		n.insert(i, e)
	} else {
		r.insert(i-half, e)
	}
	return right
}

// Remove takes a key out; whether it was there.
func (s *Set) Remove(k Key) bool {
	if s.root == 0 || !s.remove(s.root, s.levels, k) {
		return false
	}
	s.length--
	if root := &s.nodes[s.root]; s.levels > 0 && root.count == 1 {
		only := root.entries[0].value
		s.drop(s.root)
		s.root = only
		s.levels--
	}
	return true
}

func (s *Set) remove(at uint32, level int, k Key) bool {
	n := &s.nodes[at]
	if level == 0 {
		i := n.rank(k)
		if i == int(n.count) || n.entries[i].key != k {
			return false
		}
		n.remove(i)
		return true
	}
	i := n.child(k)
	child := n.entries[i].value
	if !s.remove(child, level-1, k) {
		return false
	}
	if s.nodes[child].count < minimum {
		s.refill(n, i)
	}
	return true
}

// refill joins child i, which has too few entries, with a neighbour, or shares theirs out evenly.
func (s *Set) refill(n *node, i int) {
	i = min(i, int(n.count)-2)
	right := n.entries[i+1].value
	l, r := &s.nodes[n.entries[i].value], &s.nodes[right]
	total := l.count + r.count
	if total <= width*3/4 { // some room, or the next insertion would split it again
		copy(l.entries[l.count:], r.entries[:r.count])
		l.count, l.next = total, r.next
		n.remove(i + 1)
		s.drop(right)
		return
	}
	half := total / 2
	if moved := l.count - half; moved > 0 {
		copy(r.entries[moved:], r.entries[:r.count])
		copy(r.entries[:], l.entries[half:l.count])
	} else {
		copy(l.entries[l.count:], r.entries[:-moved])
		copy(r.entries[:], r.entries[-moved:r.count])
	}
	l.count, r.count = half, total-half
	n.entries[i+1].key = r.entries[0].key
}

func (s *Set) fresh() uint32 {
	at := s.vacant
	if at == 0 {
		s.nodes = append(s.nodes, node{})
		return uint32(len(s.nodes) - 1)
	}
	s.vacant = s.nodes[at].next
	s.nodes[at].count, s.nodes[at].next = 0, 0
	return at
}

func (s *Set) drop(at uint32) {
	s.nodes[at].next = s.vacant
	s.vacant = at
}

// seek returns the place of the first key not below k; the leaf is 0 when there is none.
func (s *Set) seek(k Key) (leaf uint32, i int) {
	at := s.root
	if at == 0 {
		return 0, 0
	}
	for range s.levels {
		n := &s.nodes[at]
		at = n.entries[n.child(k)].value
	}
	n := &s.nodes[at]
	if i = n.rank(k); i < int(n.count) {
		return at, i
	}
	return n.next, 0
}

// Ceiling returns the first key that is not below k, and its value.
func (s *Set) Ceiling(k Key) (Key, uint32, bool) {
	leaf, i := s.seek(k)
	if leaf == 0 {
		return Key{}, 0, false
	}
	e := &s.nodes[leaf].entries[i]
	return e.key, e.value, true
}

// Last returns the greatest key and its value.
func (s *Set) Last() (Key, uint32, bool) {
	if s.length == 0 {
		return Key{}, 0, false
	}
	at := s.root
	for range s.levels {
		n := &s.nodes[at]
		at = n.entries[n.count-1].value
	}
	n := &s.nodes[at]
	e := &n.entries[n.count-1]
	return e.key, e.value, true
}

// From yields the keys that are not below k in ascending order. The set must not change meanwhile.
func (s *Set) From(k Key) iter.Seq2[Key, uint32] {
	return func(yield func(Key, uint32) bool) {
		leaf, i := s.seek(k)
		for leaf != 0 {
			n := &s.nodes[leaf]
			for ; i < int(n.count); i++ {
				if !yield(n.entries[i].key, n.entries[i].value) {
					return
				}
			}
			leaf, i = n.next, 0
		}
	}
}
