package keeper

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// recover takes over what processes have mapped of an earlier keeper's sets. It names what is lost.
func (k *Keeper) recover(ctx context.Context, log func(string)) {
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
	k.mu.Lock()
	defer k.mu.Unlock()
	failed := map[uint64]string{}
	for pid, sets := range told {
		who, err := ownerOf(pid)
		if err != nil {
			continue
		}
		for _, has := range sets {
			s := k.sets[has.ID]
			if s == nil {
				if s, err = fetch(pid, has); err != nil {
					failed[has.ID] = has.Name
					continue
				}
				k.sets[has.ID] = s
				s.users[who] = 0
			}
			if s.users[who]++; s.Sealed == 0 {
				k.complete(s, has.Sealed)
			}
		}
	}
	// A set that one process has paused may have come from another.
	for pid, sets := range told {
		who, err := ownerOf(pid)
		for _, has := range sets {
			if s := k.sets[has.ID]; err == nil && s != nil && s.users[who] == 0 {
				s.users[who]++
			}
		}
	}
	for id, name := range failed {
		if k.sets[id] == nil && k.named(name) == nil {
			k.lost[name] = true
			log(fmt.Sprintf("the set %q is lost: no process had all of it mapped when the keeper was killed", name))
		}
	}
	k.sweep()
}

// fetch takes over a set from a process that has it mapped. (server.Ask, as any importer)
func fetch(pid int, has control.KeptSet) (*set, error) {
	s := &set{KeptSet: has, descriptors: map[uint64]int{}, manifest: -1, users: map[owner]int{}}
	s.Users, s.Sealed = nil, 0
	take := func(share uint64) (int, error) {
		reply, descriptor, err := server.Ask(directories, pid,
			control.Request{Op: control.Lend, Share: share, Import: max(1, rand.Uint64())}, -1)
		if err == nil && (!reply.OK || descriptor < 0) {
			err = fmt.Errorf("process %d: %s", pid, reply.Error)
		}
		if err != nil && descriptor >= 0 {
			_ = unix.Close(descriptor)
		}
		return descriptor, err
	}
	var err error
	if s.manifest, err = take(has.ID); err != nil {
		s.manifest = -1
		return nil, err
	}
	for _, chunk := range slices.Clone(has.Chunks) {
		descriptor, err := take(chunk.ID)
		if err != nil {
			s.close()
			return nil, err
		}
		s.descriptors[chunk.ID] = descriptor
	}
	return s, nil
}

func directories() (runtime, temporary string) {
	return os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR")
}
