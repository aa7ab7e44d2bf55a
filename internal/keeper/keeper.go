// Package keeper is the process that holds memory no process owns: named sets of descriptors of device memory, each
// with a manifest that only its users read, and reserved host memory. It calls no CUDA and copies nothing. Each user has
// one, at a socket beside those of the user's processes (package control); the first process that needs it starts it
// (Start).
//
// A set has a maker, which is filling it, until it is sealed. Then it has a name, and users, which may have it mapped
// or paused. A later set takes over the name, and a drop takes it away: the keeper then closes the set when nobody uses
// it any longer. Processes that have ended count no more.
//
// Reserved host memory is extents. A process that takes one is its only owner, until it gives it back. When a process
// ends, the system gets its extents, and no other process does: its device may still write there.
//
// A keeper that was killed is followed by another, which asks all processes that listen what they have attached.
package keeper

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/process"
	"tms/vmm/cuda"
)

// owner is a process; another may have its number later.
type owner struct {
	pid   int
	start uint64
}

type set struct {
	control.KeptSet
	descriptors map[uint64]int // by chunk, and that of the manifest by the set's own number
	maker       owner          // of a set that is not complete
	users       map[owner]int  // how often each has it open
}

func newSet(of control.KeptSet) *set {
	return &set{KeptSet: of, descriptors: map[uint64]int{}, users: map[owner]int{}}
}

// Keeper has all sets.
type Keeper struct {
	mu   sync.Mutex
	sets map[uint64]*set
	lost map[string]bool // names of sets of an earlier keeper
	free map[int][]int   // descriptors of reserved extents, by NUMA node
}

// New returns a keeper without sets.
func New() *Keeper {
	return &Keeper{sets: map[uint64]*set{}, lost: map[string]bool{}, free: map[int][]int{}}
}

// answer carries out a request. given is the descriptor that came with it, or -1; answer takes it over if it sets it to
// -1. The caller closes the descriptor that answer returns, unless that is -1. Errors: a refusal.
func (k *Keeper) answer(from owner, r control.Request, given *int) (reply control.Reply, descriptor int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.Op != control.Lend { // there is one for each chunk
		k.sweep()
		defer k.sweep()
	}
	s, descriptor := k.sets[r.Set], -1
	switch r.Op {
	case control.Put, control.Seal:
		if r.Op == control.Put && s == nil && r.Before == 0 {
			s = newSet(control.KeptSet{ID: r.Set, Name: r.Name, Device: r.Device, Place: r.To})
			s.maker = from
		}
		switch {
		case s == nil || s.Sealed != 0 || s.maker != from || r.Before != len(s.Chunks):
			err = cuda.Refuse(cuda.SymbolNotFound, "it does not have what this set had so far (was the keeper killed "+
				"meanwhile?); publish it again")
		case s.Name == "" || len(s.Name) > 255:
			err = cuda.Refuse(cuda.InvalidValue, "a set has a name of 1 to 255 bytes")
		case *given < 0:
			err = errors.New("no descriptor came with the request")
		case r.Op == control.Put:
			k.sets[r.Set] = s
			if last := len(s.Chunks) - 1; r.Joins && last >= 0 {
				s.Chunks[last].More = append(s.Chunks[last].More, r.Share)
				s.Chunks[last].Bytes += r.Bytes
			} else {
				s.Chunks = append(s.Chunks, control.KeptChunk{ID: r.Share, Bytes: r.Bytes, Node: r.Node})
			}
			s.Bytes += r.Bytes
			s.descriptors[r.Share], *given = *given, -1
		default:
			sealed, before := time.Now().UnixNano(), k.named(s.Name)
			if r.Share != 0 {
				if before == nil || before.ID != r.Share {
					err = cuda.Refuse(cuda.NotReady, "another process has replaced or dropped the set meanwhile")
				} else {
					err = InUse(before.told(), from.pid)
				}
				if err != nil {
					break
				}
			}
			if before != nil { // the clock may have been set back
				sealed = max(sealed, before.Sealed+1)
			}
			s.descriptors[s.ID], *given = *given, -1
			s.Sealed, s.Used, s.Tensors, s.maker, s.users[from] = sealed, sealed, r.Tensors, owner{}, 1
			reply.Sets = []control.KeptSet{s.told()}
		}
	case control.Open, control.Drop:
		switch s = k.named(r.Name); {
		case s == nil && k.lost[r.Name]:
			err = cuda.Refuse(cuda.SymbolNotFound, "the set was lost with a keeper that was killed, because no "+
				"process had it attached")
		case s == nil:
			err = cuda.Refuse(cuda.SymbolNotFound, "there is no complete set of that name")
		case r.Op == control.Drop:
			s.Replaced = true
			delete(k.lost, r.Name)
			reply.Sets = []control.KeptSet{s.told()}
		default:
			if descriptor, err = duplicate(s.descriptors[s.ID]); err == nil {
				s.users[from]++
				reply.Sets = []control.KeptSet{s.told()}
			}
		}
	case control.Lend:
		err = cuda.Refuse(cuda.InvalidHandle, "it does not have this memory")
		for _, s := range k.sets {
			for _, c := range s.Chunks {
				if c.ID == r.Share || slices.Contains(c.More, r.Share) {
					descriptor, err = duplicate(s.descriptors[r.Share])
					reply.Bytes, reply.Extent, reply.Device = c.Bytes, c.Bytes, s.Device
				}
			}
		}
	case control.Close:
		if s != nil && s.Sealed == 0 && s.maker == from {
			s.maker = owner{}
		} else if s != nil && s.users[from] > 0 {
			s.users[from]--
		}
	case control.Give:
		if r.Node == nil || *given < 0 {
			return reply, -1, errors.New("a give needs a node, and a descriptor")
		}
		k.free[*r.Node], *given = append(k.free[*r.Node], *given), -1
	case control.Take:
		reply.Reserved = map[int]uint64{}
		for node, extents := range k.free {
			reply.Reserved[node] = uint64(len(extents)) * cuda.HostExtent
		}
		if r.Bytes == 0 {
			break
		}
		if r.Node == nil || len(k.free[*r.Node]) == 0 {
			err = cuda.Refuse(cuda.OutOfMemory, "no reserved host memory is free")
			break
		}
		extents := k.free[*r.Node]
		descriptor, k.free[*r.Node] = extents[len(extents)-1], extents[:len(extents)-1]
	case control.List:
		for _, s := range k.sets {
			reply.Sets = append(reply.Sets, s.told())
		}
		slices.SortFunc(reply.Sets, func(a, b control.KeptSet) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.Sealed, a.Sealed))
		})
	default:
		err = fmt.Errorf("the keeper answers no %s", r.Op)
	}
	return reply, descriptor, err
}

// InUse returns an error if a set is on its device and processes but one have it open: it cannot be moved then.
func InUse(s control.KeptSet, one int) error {
	others := slices.DeleteFunc(slices.Clone(s.Users), func(pid int) bool { return pid == one })
	if s.Place != "" || len(others) == 0 {
		return nil
	}
	return cuda.Refuse(cuda.NotReady, "process %s has it open, perhaps paused; it can be demoted when none has",
		strings.Trim(fmt.Sprint(others), "[]"))
}

// told is what others are told of a set.
func (s *set) told() control.KeptSet {
	told := s.KeptSet
	told.Chunks, told.Users = slices.Clone(s.Chunks), []int{}
	for user := range s.users {
		told.Users = append(told.Users, user.pid)
	}
	slices.Sort(told.Users)
	return told
}

// named returns the complete set that has a name now: the last one; nil: none has.
func (k *Keeper) named(name string) (found *set) {
	for _, s := range k.sets {
		if s.Name == name && !s.Replaced && s.Sealed != 0 && (found == nil || s.Sealed > found.Sealed) {
			found = s
		}
	}
	return found
}

// sweep takes the names of sets that have a successor, and closes those that nobody can use any longer.
func (k *Keeper) sweep() {
	for id, s := range k.sets {
		s.Replaced = s.Sealed != 0 && s != k.named(s.Name)
		before := len(s.users)
		maps.DeleteFunc(s.users, func(u owner, count int) bool { return count == 0 || process.Ended(u.pid, u.start) })
		if len(s.users) < before {
			s.Used = time.Now().UnixNano()
		}
		if s.Sealed == 0 && process.Ended(s.maker.pid, s.maker.start) || s.Replaced && len(s.users) == 0 {
			delete(k.sets, id)
			for _, c := range s.Chunks {
				for _, extent := range append(c.More, c.ID) {
					if c.Node != nil {
						k.free[*c.Node] = append(k.free[*c.Node], s.descriptors[extent])
						delete(s.descriptors, extent)
					}
				}
			}
			go s.close() // that may take seconds for host memory and files, and others ask meanwhile
		}
	}
}

func (s *set) close() {
	for _, descriptor := range s.descriptors {
		_ = unix.Close(descriptor)
	}
	clear(s.descriptors)
}

// ownerOf returns a process that lives.
func ownerOf(pid int) (owner, error) {
	start, _, err := process.Started(pid)
	return owner{pid, start}, err
}

func duplicate(descriptor int) (int, error) {
	return unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
}
