// Package ordered has an ordered set for best fit, which finds, removes and returns the first key not below a wanted
// one. It makes no garbage, and has no pointers for the collector to follow. The high bits of a key choose a bin, and
// each bin is a B+ tree; all nodes lie in one slice.
package ordered

import "math/bits"

// Fit returns the key of a free block: it orders blocks that do not overlap by size, then by address. It needs only the
// address bits that the size leaves open, because two blocks of at least 2^n bytes begin at least 2^n bytes apart. The
// size is a multiple of 256 bytes, and not 0.
func Fit(size uint64, address uintptr) uint64 {
	units := size / 256
	log := bits.Len64(units) - 1
	return uint64(log)<<56 + units<<(56-log) + uint64(address)/256>>log
}

// Set maps keys to values in the order of the keys. The zero value is an empty set.
type Set struct {
	nodes  []node // nodes[0] is unused, so that 0 means none
	vacant uint32 // the first free node
	length int

	bins   [bins]tree
	filled [bins / 64]uint64 // bit b: there are keys in bins[b]
	words  uint8             // bit w: filled[w] is not 0
}

// tree is one bin. From its first key on it keeps one node, because bins fill and empty all the time.
type tree struct {
	root   uint32 // 0: it never had a key
	levels uint32 // above the leaves
}

// Entry is a key of the set, with its value.
type Entry struct {
	Key   uint64
	Value uint32
	leaf  uint32 // where it is until the set changes
	at    int32
}

const (
	bins     = 512
	binShift = 53 // for a Fit: eight to every doubling of the size

	width   = 31        // entries in a node, which fills six cache lines
	minimum = width / 4 // in every node but the root
)

// node is a leaf, or an inner node whose values are its children and whose keys are lower bounds of theirs.
type node struct {
	count  int32
	next   uint32 // the node to the right on this level; for a free one, the next free
	keys   [width]uint64
	values [width]uint32
}

func binOf(key uint64) int { return int(min(key>>binShift, bins-1)) }

// rank returns the number of keys below k.
func (n *node) rank(k uint64) int {
	low, high := 0, int(n.count)
	for low < high {
		middle := int(uint(low+high) / 2)
		if n.keys[middle] < k {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// child returns the child of an inner node that k belongs to.
func (n *node) child(k uint64) int {
	i := n.rank(k)
	if i < int(n.count) && n.keys[i] == k {
		return i
	}
	return max(i-1, 0)
}

func (n *node) insert(i int, key uint64, value uint32) {
	if i < int(n.count) {
		copy(n.keys[i+1:n.count+1], n.keys[i:n.count])
		copy(n.values[i+1:n.count+1], n.values[i:n.count])
	}
	n.keys[i], n.values[i] = key, value
	n.count++
}

func (n *node) remove(i int) {
	if i+1 < int(n.count) {
		copy(n.keys[i:], n.keys[i+1:n.count])
		copy(n.values[i:], n.values[i+1:n.count])
	}
	n.count--
}

// move puts the entries of from, which begin at i, at the place at in n.
func (n *node) move(at int32, from *node, i, end int32) {
	copy(n.keys[at:], from.keys[i:end])
	copy(n.values[at:], from.values[i:end])
}

func (s *Set) Len() int { return s.length }

// Insert adds a key, which must not be in the set.
func (s *Set) Insert(key uint64, value uint32) {
	s.length++
	b := binOf(key)
	t := &s.bins[b]
	if t.root == 0 {
		if s.nodes == nil {
			s.nodes = make([]node, 1, 8)
		}
		t.root = s.fresh()
	}
	s.filled[b/64] |= 1 << (b % 64)
	s.words |= 1 << (b / 64)
	if s.nodes[t.root].count == width {
		only := t.root
		t.root = s.fresh()
		t.levels++
		s.nodes[t.root].insert(0, s.nodes[only].keys[0], only)
		s.split(t.root, 0)
	}
	at := t.root
	for range t.levels {
		n := &s.nodes[at]
		i := n.child(key)
		if s.nodes[n.values[i]].count == width {
			s.split(at, i)
			n = &s.nodes[at] // may have moved
			i = n.child(key)
		}
		n.keys[i] = min(n.keys[i], key)
		at = n.values[i]
	}
	n := &s.nodes[at]
	n.insert(n.rank(key), key, value)
}

// split moves the upper half of a full child to a new one on its right. The node at is not full.
func (s *Set) split(at uint32, i int) {
	right := s.fresh()
	n := &s.nodes[at]
	l, r := &s.nodes[n.values[i]], &s.nodes[right]
	const half = width / 2
	r.move(0, l, half, width)
	l.count, r.count = half, width-half
	l.next, r.next = right, l.next
	n.insert(i+1, r.keys[0], right)
}

// leaf returns a key's leaf, in a bin that is not empty.
func (s *Set) leaf(t *tree, key uint64) uint32 {
	at := t.root
	for range t.levels {
		n := &s.nodes[at]
		at = n.values[n.child(key)]
	}
	return at
}

// Remove takes out a key, which must be in the set.
func (s *Set) Remove(key uint64) {
	b := binOf(key)
	n := &s.nodes[s.leaf(&s.bins[b], key)]
	s.remove(n, n.rank(key), b)
}

// Take takes out the entry that Ceiling has just returned.
func (s *Set) Take(e Entry) { s.remove(&s.nodes[e.leaf], int(e.at), binOf(e.Key)) }

// remove takes an entry out of a leaf of a bin. If the leaf has too few, remove first refills it and those above.
func (s *Set) remove(n *node, i, b int) {
	s.length--
	t := &s.bins[b]
	if n.count <= minimum && t.levels > 0 {
		key := n.keys[i]
		n = &s.nodes[t.root]
		for range t.levels {
			i = n.child(key)
			if s.nodes[n.values[i]].count <= minimum {
				s.refill(n, i)
				i = n.child(key)
			}
			n = &s.nodes[n.values[i]]
		}
		i = n.rank(key)
		if root := &s.nodes[t.root]; root.count == 1 {
			only := root.values[0]
			s.drop(t.root)
			t.root = only
			t.levels--
		}
	}
	n.remove(i)
	if n.count == 0 {
		if s.filled[b/64] &^= 1 << (b % 64); s.filled[b/64] == 0 {
			s.words &^= 1 << (b / 64)
		}
	}
}

// refill joins child i, which has too few entries, with a neighbour, or divides their entries evenly.
func (s *Set) refill(n *node, i int) {
	i = min(i, int(n.count)-2)
	right := n.values[i+1]
	l, r := &s.nodes[n.values[i]], &s.nodes[right]
	total := l.count + r.count
	if total <= width*3/4 { // some room, or the next insertion would split it again
		l.move(l.count, r, 0, r.count)
		l.count, l.next = total, r.next
		n.remove(i + 1)
		s.drop(right)
		return
	}
	half := total / 2
	if moved := l.count - half; moved > 0 {
		r.move(moved, r, 0, r.count)
		r.move(0, l, half, l.count)
	} else {
		l.move(l.count, r, 0, -moved)
		r.move(0, r, -moved, r.count)
	}
	l.count, r.count = half, total-half
	n.keys[i+1] = r.keys[0]
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

// Ceiling returns the first key that is not below k, with its value.
func (s *Set) Ceiling(k uint64) (e Entry, found bool) {
	b, leaf, i := binOf(k), uint32(0), 0
	if t := &s.bins[b]; t.root != 0 {
		leaf = s.leaf(t, k)
		n := &s.nodes[leaf]
		if i = n.rank(k); i == int(n.count) {
			leaf, i = n.next, 0
		}
	}
	if leaf == 0 {
		if leaf = s.behind(b); leaf == 0 {
			return Entry{}, false
		}
	}
	n := &s.nodes[leaf]
	return Entry{n.keys[i], n.values[i], leaf, int32(i)}, true
}

// behind returns the first leaf of the bins behind one; 0: they are empty.
func (s *Set) behind(bin int) uint32 {
	word := bin / 64
	above := s.filled[word] >> (bin % 64) >> 1 << 1 << (bin % 64)
	if above == 0 {
		words := s.words >> word >> 1 << 1 << word
		if words == 0 {
			return 0
		}
		word = bits.TrailingZeros8(words)
		above = s.filled[word]
	}
	t := s.bins[64*word+bits.TrailingZeros64(above)]
	for range t.levels {
		t.root = s.nodes[t.root].values[0]
	}
	return t.root
}

// Last returns the greatest key and its value.
func (s *Set) Last() (key uint64, value uint32, found bool) {
	if s.words == 0 {
		return 0, 0, false
	}
	word := bits.Len8(s.words) - 1
	t := s.bins[64*word+bits.Len64(s.filled[word])-1]
	n := &s.nodes[t.root]
	for range t.levels {
		n = &s.nodes[n.values[n.count-1]]
	}
	return n.keys[n.count-1], n.values[n.count-1], true
}
