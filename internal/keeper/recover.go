package keeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/control/server"
)

// recoverTime is how long the processes may take to say what they have.
const recoverTime = 3 * time.Second

// recover takes over what processes have mapped of an earlier keeper's sets. It names what is lost.
func (k *Keeper) recover(ctx context.Context, log func(string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	told := askAll(ctx)
	for pid, sets := range told {
		for _, has := range sets {
			if k.sets[has.ID] == nil {
				if s, err := fetch(pid, has); err == nil {
					k.sets[has.ID] = s
				}
			}
		}
	}
	for pid, sets := range told {
		user, err := ownerOf(pid)
		for _, has := range sets {
			if s := k.sets[has.ID]; s != nil && err == nil {
				s.users[user]++
			}
		}
	}
	for _, s := range k.sets {
		k.complete(s)
	}
	for _, sets := range told {
		for _, has := range sets {
			if k.sets[has.ID] == nil && k.named(has.Name) == nil && !k.lost[has.Name] {
				k.lost[has.Name] = true
				log(fmt.Sprintf("the set %q is lost: no process had all of it mapped", has.Name))
			}
		}
	}
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

// fetch takes over a set from a process that has all of it mapped.
func fetch(pid int, has control.KeptSet) (_ *set, err error) {
	s := newSet(has)
	take := func(share uint64) int {
		descriptor := -1
		var reply control.Reply
		if err == nil {
			reply, descriptor, err = server.Ask(directories, pid,
				control.Request{Op: control.Lend, Share: share, Import: max(1, rand.Uint64())}, -1)
		}
		if err == nil && (!reply.OK || descriptor < 0) {
			err = errors.New(reply.Error)
		}
		return descriptor
	}
	s.manifest = take(has.ID)
	for _, chunk := range has.Chunks {
		s.descriptors[chunk.ID] = take(chunk.ID)
	}
	if err != nil {
		s.close()
	}
	return s, err
}

func directories() (runtime, temporary string) {
	return os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR")
}
