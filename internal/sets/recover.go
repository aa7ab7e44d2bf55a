package sets

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/client"
)

// recoverTime is how long the processes may take to say what they have.
const recoverTime = 3 * time.Second

// recover takes over what processes have attached of an earlier keeper's sets, and notes the names of the lost ones.
func (k *Keeper) recover(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	room := k.held.Room
	defer func() { k.held.Room = room }()
	k.held.Room = nil // what it did not take over beyond its limit would be lost
	for pid, sets := range askAll(ctx) {
		user, _ := ownerOf(pid) // a process that has ended since does not count
		for _, has := range sets {
			has.Follows = false
			s := k.sets[has.ID]
			if s == nil {
				s = newSet(has)
				k.sets[has.ID] = s
			}
			s.Version = max(s.Version, has.Version) // a process of an older tms does not know it
			s.users[user]++
			k.noteOwner(user, s)
			if !k.has(s) {
				k.fetch(ctx, s, pid)
			}
		}
	}
	for id, s := range k.sets {
		if !k.has(s) {
			k.lost[s.Name] = true
			delete(k.sets, id)
			continue
		}
		for index, c := range s.Chunks {
			k.chunks[c.ID] = chunk{s, index}
		}
	}
	for _, s := range k.sets {
		switch last := k.named[s.Name]; {
		case !k.hasName(s):
			s.Replaced = true
		case last == nil || last.Sealed < s.Sealed:
			k.named[s.Name] = s
			k.replace(last)
		default:
			k.replace(s)
		}
	}
	k.sweep()
}

// has reports whether the keeper holds a set: the manifest comes last.
func (k *Keeper) has(s *set) bool {
	_, has := k.held.Bytes(s.ID)
	return has
}

// hasName reports whether the keeper before had taken no name from the set (replace).
func (k *Keeper) hasName(s *set) bool {
	var manifest unix.Stat_t
	err := k.held.Use(s.ID, func(descriptor int) error { return unix.Fstat(descriptor, &manifest) })
	return err == nil && manifest.Mode&0o777 != 0
}

// askAll asks all processes at once which sets they have open.
func askAll(ctx context.Context) map[int][]control.KeptSet {
	pids, _ := client.List()
	var mu sync.Mutex
	var all sync.WaitGroup
	told := map[int][]control.KeptSet{}
	for _, pid := range pids {
		all.Go(func() {
			connection, err := client.Dial(pid)
			if err != nil {
				return
			}
			defer connection.Close()
			if state, err := connection.Status(ctx, recoverTime); err == nil {
				mu.Lock()
				defer mu.Unlock()
				told[pid] = state.Kept
			}
		})
	}
	all.Wait()
	return told
}

// fetch takes over a set from a process that has it attached, or nothing. The process may be in a PID namespace below.
func (k *Keeper) fetch(ctx context.Context, s *set, pid int) {
	connection, err := client.Dial(pid)
	if err != nil {
		return
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, recoverTime)
	defer cancel()
	var fetched []uint64
	for _, each := range append(slices.Clone(s.Chunks), control.KeptChunk{ID: s.ID}) {
		descriptor := -1
		file, err := connection.Lend(ctx, each.ID)
		if err == nil {
			descriptor, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			_ = file.Close()
		}
		if err == nil {
			err = k.hold(each.ID, each.Bytes, &descriptor)
		}
		if err != nil {
			_ = unix.Close(descriptor) // -1: there is none
			k.drop(fetched)
			return
		}
		fetched = append(fetched, each.ID)
	}
}

func directories() (runtime, temporary string) {
	return os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR")
}
