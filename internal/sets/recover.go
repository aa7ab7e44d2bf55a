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
	"tms/internal/control/server"
)

// recoverTime is how long the processes may take to say what they have.
const recoverTime = 3 * time.Second

// recover takes over what processes have attached of an earlier keeper's sets, and notes the names of the lost ones.
func (k *Keeper) recover(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for pid, sets := range askAll(ctx) {
		user, _ := ownerOf(pid) // a process that has ended since does not count
		for _, has := range sets {
			s := k.sets[has.ID]
			if s == nil {
				s = newSet(has)
				k.sets[has.ID] = s
			}
			s.users[user]++
			k.own(user, s)
			if len(s.descriptors) == 0 {
				s.fetch(pid)
			}
		}
	}
	for id, s := range k.sets {
		if len(s.descriptors) == 0 {
			k.lost[s.Name] = true
			delete(k.sets, id)
			continue
		}
		k.held += len(s.descriptors)
		for index, c := range s.Chunks {
			k.chunks[c.ID] = chunk{s, index}
		}
	}
	for _, s := range k.sets {
		switch last := k.named[s.Name]; {
		case !s.hasName():
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

// hasName reports whether the keeper before had taken no name from the set (replace).
func (s *set) hasName() bool {
	var manifest unix.Stat_t
	return unix.Fstat(s.descriptors[s.ID], &manifest) == nil && manifest.Mode&0o777 != 0
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

// fetch takes over a set from a process that has it attached, or nothing.
func (s *set) fetch(pid int) {
	for _, each := range append(slices.Clone(s.Chunks), control.KeptChunk{ID: s.ID}) {
		_, descriptor, err := server.Ask(directories, pid,
			control.LendRequest{Op: control.Lend, Memory: each.ID}, -1)
		s.descriptors[each.ID] = descriptor
		if err != nil || descriptor < 0 {
			_ = s.close()
			return
		}
	}
}

func directories() (runtime, temporary string) {
	return os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR")
}
