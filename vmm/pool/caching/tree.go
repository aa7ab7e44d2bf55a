package caching

// tree orders free blocks by size and address: a treap (Seidel and Aragon, "Randomized search trees",
// 1996) through the blocks themselves, so that nothing is allocated. All operations take logarithmic
// time; a block's metadata keep their random priority for good.
type tree struct{ root *block }

func (b *block) before(c *block) bool {
	return b.size < c.size || b.size == c.size && b.address < c.address
}

func (t *tree) insert(b *block) {
	link := &t.root
	for *link != nil && (*link).priority >= b.priority {
		if b.before(*link) {
			link = &(*link).left
		} else {
			link = &(*link).right
		}
	}
	// b goes here; what was below is parted into its left and right.
	rest := *link
	*link = b
	left, right := &b.left, &b.right
	for rest != nil {
		if rest.before(b) {
			*left = rest
			left = &rest.right
			rest = rest.right
		} else {
			*right = rest
			right = &rest.left
			rest = rest.left
		}
	}
	*left, *right = nil, nil
}

// remove takes out a block that is in the tree.
func (t *tree) remove(b *block) {
	link := &t.root
	for *link != b {
		if b.before(*link) {
			link = &(*link).left
		} else {
			link = &(*link).right
		}
	}
	left, right := b.left, b.right
	for left != nil && right != nil {
		if left.priority >= right.priority {
			*link = left
			link = &left.right
			left = left.right
		} else {
			*link = right
			link = &right.left
			right = right.left
		}
	}
	if left == nil {
		left = right
	}
	*link = left
	b.left, b.right = nil, nil
}

// ceiling returns the first block of at least a size, nil when there is none.
func (t *tree) ceiling(size uint64) *block {
	var found *block
	for b := t.root; b != nil; {
		if b.size < size {
			b = b.right
		} else {
			found = b
			b = b.left
		}
	}
	return found
}

// last returns the last block of a tree that is not empty.
func (t *tree) last() *block {
	b := t.root
	for b.right != nil {
		b = b.right
	}
	return b
}

// each visits the blocks in order.
func (t *tree) each(visit func(*block)) { each(t.root, visit) }

func each(b *block, visit func(*block)) {
	if b != nil {
		each(b.left, visit)
		visit(b)
		each(b.right, visit)
	}
}
