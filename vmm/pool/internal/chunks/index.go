package chunks

// index finds the live chunk that starts at an address: a hash table with open addressing and linear
// probing (Knuth, The Art of Computer Programming, 6.4, algorithms L and R). It takes less than half
// the time of a Go map, in which a malloc and free would spend most of theirs.
type index struct {
	slots []slot // a power of two of them, at most half in use, so that probes are short
	count int
	shift uint // of a 64-bit hash, to a place
}

type slot struct {
	address uintptr
	chunk   Handle // None: the slot is empty
}

const smallest = 64 // slots

// home is where an address belongs: Fibonacci hashing, because addresses share their low bits.
func (x *index) home(address uintptr) int {
	return int(uint64(address) * 0x9E3779B97F4A7C15 >> x.shift)
}

// enter adds an address, which must not be there.
func (x *index) enter(address uintptr, h Handle) {
	if 2*x.count >= len(x.slots) {
		x.grow()
	}
	x.count++
	i := x.home(address)
	for x.slots[i].chunk != None {
		i = (i + 1) & (len(x.slots) - 1)
	}
	x.slots[i] = slot{address, h}
}

func (x *index) grow() {
	full := x.slots
	x.slots = make([]slot, max(smallest, 2*len(full)))
	x.shift = 64
	for places := len(x.slots); places > 1; places /= 2 {
		x.shift--
	}
	x.count = 0
	for _, s := range full {
		if s.chunk != None {
			x.enter(s.address, s.chunk)
		}
	}
}

// remove takes an address out and returns its chunk, None if it was not there.
func (x *index) remove(address uintptr) Handle {
	if x.count == 0 {
		return None
	}
	last := len(x.slots) - 1
	i := x.home(address)
	for x.slots[i].address != address || x.slots[i].chunk == None {
		if x.slots[i].chunk == None {
			return None
		}
		i = (i + 1) & last
	}
	x.count--
	h := x.slots[i].chunk
	// Whatever follows without a gap and may stand in the hole moves up, or probes would end at it.
	for j := (i + 1) & last; x.slots[j].chunk != None; j = (j + 1) & last {
		if distance := (j - x.home(x.slots[j].address)) & last; distance >= (j-i)&last {
			x.slots[i] = x.slots[j]
			i = j
		}
	}
	x.slots[i] = slot{}
	return h
}
