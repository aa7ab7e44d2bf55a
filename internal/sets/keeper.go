package sets

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
	"tms/internal/machine/process"
	"tms/vmm/cuda"
)

// owner is a process; another may have its number later.
type owner struct {
	pid   int
	start uint64
}

// set is a set. The keeper holds its descriptors by the numbers of its chunks, and the manifest's by the number of the
// set.
type set struct {
	control.KeptSet
	maker  owner         // of a set that is not complete
	users  map[owner]int // how often each has it open
	copied bool          // a copy has taken the name over, and with it the manifest
}

func newSet(of control.KeptSet) *set { return &set{KeptSet: of, users: map[owner]int{}} }

// Keeper has all sets.
type Keeper struct {
	mu     sync.Mutex
	sets   map[uint64]*set
	chunks map[uint64]chunk          // by their numbers
	named  map[string]*set           // the complete set that has a name now
	owners map[owner]map[uint64]bool // the sets that each process makes or has open
	lost   map[string]bool           // names of sets of an earlier keeper
	free   map[int][]uint64          // numbers of reserved extents, by NUMA node
	lent   map[owner]int             // how many extents each process has taken
	held   descriptors.Holder        // of all sets, and of all extents that are free
	limit  int                       // of descriptors of this process
}

// chunk is one of a set's chunks.
type chunk struct {
	of    *set
	index int
}

// NewKeeper returns a keeper without sets.
func NewKeeper() *Keeper {
	limit := openLimit()
	return &Keeper{sets: map[uint64]*set{}, chunks: map[uint64]chunk{}, named: map[string]*set{},
		owners: map[owner]map[uint64]bool{}, lost: map[string]bool{}, free: map[int][]uint64{}, lent: map[owner]int{},
		held: descriptors.Holder{Room: roomWithin(limit)}, limit: limit}
}

// answer carries out a request. given is the descriptor that came with it, or -1; answer takes it over if it sets it to
// -1. The caller closes the descriptor that answer returns, unless that is -1, and calls settle, unless that is nil, with
// k.mu held, once it is known whether the client has got the reply. Errors: a refusal.
func (k *Keeper) answer(from owner, asked control.Request, given *int) (reply control.Reply, descriptor int,
	settle func(got bool), err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	descriptor = -1
	if lend, is := asked.(control.LendRequest); is && lend.Op == control.Lend {
		c, has := k.chunks[lend.Memory]
		if !has {
			return reply, -1, nil, cuda.Refuse(cuda.InvalidHandle, "it does not have this memory")
		}
		reply.Bytes, reply.Device = c.of.Chunks[c.index].Bytes, c.of.Device
		reply.Extent = reply.Bytes
		descriptor, err = k.held.Copy(lend.Memory)
		return reply, descriptor, nil, err
	}
	r, is := asked.(control.SetRequest)
	if !is {
		return reply, -1, nil, fmt.Errorf("the keeper answers no %s", asked.Operation())
	}
	switch r.Op {
	case control.Put:
		err = k.put(from, r, given)
	case control.Seal:
		k.sweep()
		var s *set
		if s, err = k.seal(from, r, given); err == nil {
			settle = k.unuseUnless(s, from)
			reply.Sets = []control.KeptSet{s.description()}
		}
	case control.Open, control.Drop:
		k.sweep()
		s := k.named[r.Name]
		if r.Op == control.Open && r.Set != 0 {
			if s = k.sets[r.Set]; s != nil && s.Sealed == 0 {
				s = nil
			}
		}
		switch {
		case s == nil && k.lost[r.Name]:
			err = cuda.Refuse(cuda.SymbolNotFound, "the set was lost with a keeper that was killed, because no "+
				"process had it attached")
		case s == nil:
			words := "there is no complete set of that name"
			if next := k.nextVersion(r.Name); next > 1 {
				words += fmt.Sprintf(": its newest version was dropped, or was lost with a keeper that was killed. "+
					"Processes keep the version that they have; publish version %d whole", next)
			}
			err = cuda.Refuse(cuda.SymbolNotFound, "%s", words)
		case r.Op == control.Drop:
			s.Replaced = true
			reply.Sets = []control.KeptSet{s.description()}
			k.replace(s)
		default:
			if descriptor, err = k.held.Copy(s.ID); err == nil {
				s.users[from]++
				k.noteOwner(from, s)
				settle = k.unuseUnless(s, from)
				reply.Sets = []control.KeptSet{s.description()}
			}
		}
	case control.Close:
		if s := k.sets[r.Set]; s != nil {
			k.unuse(s, from)
		}
	case control.Give:
		err = k.give(from, r, given)
	case control.Take:
		descriptor, settle, err = k.take(from, r)
		reply.Reserved = map[int]uint64{}
		for node, extents := range k.free {
			reply.Reserved[node] = uint64(len(extents)) * cuda.HostExtent
		}
	case control.List:
		k.sweep()
		for _, s := range k.sets {
			reply.Sets = append(reply.Sets, s.description())
		}
		slices.SortFunc(reply.Sets, func(a, b control.KeptSet) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.Sealed, a.Sealed))
		})
	}
	return reply, descriptor, settle, err
}

// put adds a chunk to a set that is being made, or begins one.
func (k *Keeper) put(from owner, r control.SetRequest, given *int) error {
	s := k.sets[r.Set]
	if s == nil && r.Before == 0 {
		s = newSet(control.KeptSet{ID: r.Set, Name: r.Name, Device: r.Device, Place: r.To})
		s.maker = from
	}
	if err := k.makes(s, from, r, *given); err != nil {
		return err
	}
	if err := k.hold(r.Chunk, r.Bytes, given); err != nil {
		return err
	}
	k.sets[r.Set] = s
	k.noteOwner(from, s)
	if last := len(s.Chunks) - 1; r.Joins && last >= 0 {
		s.Chunks[last].More = append(s.Chunks[last].More, r.Chunk)
		s.Chunks[last].Bytes += r.Bytes
	} else {
		s.Chunks = append(s.Chunks, control.KeptChunk{ID: r.Chunk, Bytes: r.Bytes, Node: r.Node})
	}
	s.Bytes += r.Bytes
	k.chunks[r.Chunk] = chunk{s, len(s.Chunks) - 1}
	if r.Node != nil {
		k.returned(from)
	}
	return nil
}

// hold takes over the descriptor of a number that no other has.
func (k *Keeper) hold(number, bytes uint64, given *int) error {
	if k.held.Use(number, func(int) error { return nil }) == nil {
		return cuda.Refuse(cuda.InvalidValue, "the keeper holds other memory by that number already; draw another one")
	}
	return k.held.Put(number, bytes, given)
}

// makes returns why a process cannot go on with a set.
func (k *Keeper) makes(s *set, from owner, r control.SetRequest, given int) error {
	switch {
	case s == nil || s.Sealed != 0 || s.maker != from || r.Before != len(s.Chunks):
		return cuda.Refuse(cuda.SymbolNotFound, "it does not have what this set had so far (was the "+
			"keeper killed?); publish it again")
	case s.Name == "" || len(s.Name) > 255:
		return cuda.Refuse(cuda.InvalidValue, "a set has a name of 1 to 255 bytes")
	case given < 0:
		return errors.New("no descriptor came with the request")
	}
	return nil
}

// seal completes a set, which takes over its name. A set of a snapshot takes it only where that harms no other version.
func (k *Keeper) seal(from owner, r control.SetRequest, given *int) (*set, error) {
	s := k.sets[r.Set]
	if err := k.makes(s, from, r, *given); err != nil {
		return nil, err
	}
	sealed, before := time.Now().UnixNano(), k.named[s.Name]
	if r.Original != 0 {
		if before == nil || before.ID != r.Original {
			return nil, cuda.Refuse(cuda.NotReady, "another process has just replaced or dropped the set")
		}
		if err := inUse(before.description(), from.pid); err != nil {
			return nil, err
		}
	}
	if err := k.hold(s.ID, 0, given); err != nil {
		return nil, err
	}
	if before != nil { // the clock may have been set back
		sealed = max(sealed, before.Sealed+1)
		before.copied = r.Original != 0
	}
	if s.Version = k.nextVersion(s.Name); r.Original != 0 {
		s.Version = before.Version
	}
	nameless := false
	if r.Restored != 0 {
		nameless = r.Nameless || before != nil || s.Version > r.Restored
		s.Version = r.Restored
	}
	s.Sealed, s.Used, s.Tensors, s.maker, s.users[from] = sealed, sealed, r.Tensors, owner{}, 1
	k.noteVersion(s.Name)
	if nameless {
		k.replace(s)
		return s, nil
	}
	k.replace(before)
	k.named[s.Name] = s
	delete(k.lost, s.Name)
	return s, nil
}

// nextVersion returns the number of the next set that takes over a name. As long as a process has any set of the name,
// no number is given twice, even if its set is gone: ranks and programs compare numbers.
func (k *Keeper) nextVersion(name string) (number uint64) {
	for _, s := range k.sets {
		if s.Name == name && s.Sealed != 0 {
			number = max(number, s.Version, k.notedVersion(s))
		}
	}
	return number + 1
}

// noteVersion notes the highest number of a name with all sets of the name, for the next keeper. A set's users share the
// file of its manifest, so the number is the time at which that was changed, in seconds. (utimensat)
func (k *Keeper) noteVersion(name string) {
	highest := k.nextVersion(name) - 1
	if highest >= timesBegin {
		return
	}
	times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: int64(highest)}}
	for _, s := range k.sets {
		if s.Name == name && s.Sealed != 0 {
			_ = k.held.Use(s.ID, func(manifest int) error {
				_, _, code := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(manifest), 0,
					uintptr(unsafe.Pointer(&times)), 0, 0, 0)
				return code
			})
		}
	}
}

// notedVersion returns what noteVersion has noted, or 0. A keeper of an older tms has left the time as it was.
func (k *Keeper) notedVersion(s *set) uint64 {
	var manifest unix.Stat_t
	err := k.held.Use(s.ID, func(descriptor int) error { return unix.Fstat(descriptor, &manifest) })
	if number := manifest.Mtim.Sec; err == nil && 0 < number && number < timesBegin {
		return uint64(number)
	}
	return 0
}

const timesBegin = 1 << 30 // a time of 2004: smaller ones are numbers

// replace takes its name from a set, unless the set is nil. Processes that have the set open keep its manifest. The
// manifest's file can no longer be opened, which tells the next keeper that the set has no name. (fchmod)
func (k *Keeper) replace(s *set) {
	if s == nil {
		return
	}
	s.Replaced = true
	if k.named[s.Name] == s {
		delete(k.named, s.Name)
	}
	if !s.copied { // else the copy has the same manifest
		_ = k.held.Use(s.ID, func(manifest int) error { return unix.Fchmod(manifest, 0) })
	}
	k.closeUnused(s)
}

// noteOwner notes that a process makes a set or has it open.
func (k *Keeper) noteOwner(by owner, s *set) {
	if k.owners[by] == nil {
		k.owners[by] = map[uint64]bool{}
	}
	k.owners[by][s.ID] = true
}

// unuseUnless ends one use of a set, unless the user has got the reply.
func (k *Keeper) unuseUnless(s *set, by owner) func(got bool) {
	return func(got bool) {
		if !got {
			k.unuse(s, by)
		}
	}
}

// unuse ends one use of a set. Its maker gives up a set that is not complete.
func (k *Keeper) unuse(s *set, by owner) {
	if s.users[by] > 1 {
		s.users[by]--
	} else if s.users[by] == 1 || s.maker == by {
		k.disown(s, by)
	}
}

// disown ends all uses by a process.
func (k *Keeper) disown(s *set, by owner) {
	if s.maker == by {
		s.maker = owner{}
	}
	if s.users[by] > 0 {
		delete(s.users, by)
		s.Used = time.Now().UnixNano()
	}
	if delete(k.owners[by], s.ID); len(k.owners[by]) == 0 {
		delete(k.owners, by)
	}
	k.closeUnused(s)
}

// closeUnused closes a set that no process can use any longer.
func (k *Keeper) closeUnused(s *set) {
	if k.sets[s.ID] != s || s.Sealed == 0 && s.maker != (owner{}) || s.Sealed != 0 && (!s.Replaced || len(s.users) > 0) {
		return
	}
	delete(k.sets, s.ID)
	var dropped []uint64
	if s.Sealed != 0 {
		dropped = []uint64{s.ID} // the manifest
	}
	for _, c := range s.Chunks {
		for _, number := range append(c.More, c.ID) {
			delete(k.chunks, number)
			if c.Node != nil {
				k.free[*c.Node] = append(k.free[*c.Node], number)
			} else {
				dropped = append(dropped, number)
			}
		}
	}
	go k.drop(dropped) // it may take seconds for host memory and files, and other processes must not wait
}

func (k *Keeper) drop(numbers []uint64) {
	for _, number := range numbers {
		_ = k.held.Drop(number)
	}
}

// inUse returns an error if a set is on its device and processes other than one have it open. The set cannot be moved
// then.
func inUse(s control.KeptSet, one int) error {
	others := slices.DeleteFunc(slices.Clone(s.Users), func(pid int) bool { return pid == one })
	if s.Place != "" || len(others) == 0 {
		return nil
	}
	return cuda.Refuse(cuda.NotReady, "process %s has it open, perhaps paused; it can be demoted when none has",
		strings.Trim(fmt.Sprint(others), "[]"))
}

// description returns what the keeper tells clients of a set.
func (s *set) description() control.KeptSet {
	told := s.KeptSet
	told.Chunks, told.Users = slices.Clone(s.Chunks), []int{}
	for user := range s.users {
		told.Users = append(told.Users, user.pid)
	}
	slices.Sort(told.Users)
	told.Maker = s.maker.pid
	return told
}

// sweep forgets processes that have ended, and ends their uses of sets.
func (k *Keeper) sweep() {
	for by, sets := range k.owners {
		if process.Ended(by.pid, by.start) {
			for id := range maps.Clone(sets) {
				k.disown(k.sets[id], by)
			}
		}
	}
	maps.DeleteFunc(k.lent, func(by owner, _ int) bool { return process.Ended(by.pid, by.start) })
}

// empty reports whether nothing is lost with the keeper.
func (k *Keeper) empty() bool {
	extents := len(k.lent)
	for _, free := range k.free {
		extents += len(free)
	}
	return len(k.sets)+extents == 0
}

// ownerOf returns a process by its number.
func ownerOf(pid int) (owner, error) {
	start, _, err := process.Started(pid)
	return owner{pid, start}, err
}
