package snapshot

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is a snapshot in a list.
type Entry struct {
	Name      string    `json:"name"`
	Made      time.Time `json:"made,omitzero"`
	Processes []Process `json:"-"`
	Needs     Needs     `json:"-"`
	Contents  int64     `json:"contents"` // bytes of the programs' contents, with zeros
	Memory    int64     `json:"memory"`   // bytes of the processes' private memory, with zeros
	Blocks    int64     `json:"blocks"`   // bytes of the blocks that it names
	Own       int64     `json:"own"`      // bytes of those that no other snapshot names
	Files     int64     `json:"files"`    // bytes of its other files
	// Problem says why it cannot be restored: "" if nothing is known to be wrong.
	Problem string `json:"problem,omitempty"`
}

// List lists all snapshots, oldest first, and what was begun and is not complete.
func (d *Directory) List() ([]Entry, error) {
	complete, incomplete, err := d.names()
	if err != nil {
		return nil, err
	}
	type use struct {
		bytes int64
		of    int // how many snapshots name it
	}
	uses := map[stored]use{}
	named := make([]map[stored]bool, len(complete))
	var list []Entry
	for i, name := range complete {
		entry := Entry{Name: name}
		if m, err := d.readManifest(name); err != nil {
			entry.Problem = err.Error()
		} else {
			entry.Made, entry.Processes, entry.Needs = m.Made, m.Processes, m.Needs
			s := &Snapshot{Name: name, Manifest: m, directory: d}
			named[i] = map[stored]bool{}
			for _, p := range m.Processes {
				entry.Contents += p.Bytes()
			}
			for _, set := range m.Sets {
				entry.Contents += set.Bytes()
			}
			for _, f := range m.Pages {
				entry.Memory += f.Size
			}
			for _, c := range m.contents() {
				for k, sum := range c.Blocks {
					if at := s.stored(c, k); sum != (Sum{}) && !named[i][at] {
						named[i][at] = true
						uses[at] = use{wholeBlocks(c.length(k)), uses[at].of + 1}
					}
				}
			}
			for _, f := range m.Files {
				entry.Files += f.Size
			}
			if missing := s.missing(); len(missing) > 0 {
				entry.Problem = missing[0].Error()
			}
		}
		list = append(list, entry)
	}
	for i := range complete {
		for at := range named[i] {
			list[i].Blocks += uses[at].bytes
			if uses[at].of == 1 {
				list[i].Own += uses[at].bytes
			}
		}
	}
	slices.Sort(incomplete)
	for _, name := range incomplete {
		list = append(list, Entry{Name: strings.TrimSuffix(name, partial),
			Problem: "it is not complete: it is being made, or its command was killed"})
	}
	return list, nil
}

// Check reads all that a snapshot has, or that all snapshots have, and lists what is wrong. It returns how
// many bytes it has read.
func (d *Directory) Check(ctx context.Context, name string) (damage []*Damage, bytes int64, err error) {
	lock, err := d.lock(unix.LOCK_SH)
	if err != nil {
		return nil, 0, d.failed("locking", d.path, err)
	}
	defer lock.Close()
	names := []string{name}
	if name == "" {
		if names, _, err = d.names(); err != nil {
			return nil, 0, err
		}
	} else if _, err := d.find(name); err != nil {
		return nil, 0, err
	}
	var read atomic.Int64
	verdicts := map[stored]error{} // of blocks that were read
	memory := newBuffers()
	for _, name := range names {
		m, err := d.readManifest(name)
		if err != nil {
			damage = append(damage, err.(*Damage))
			continue
		}
		s := &Snapshot{Name: name, Manifest: m, directory: d, lock: lock, buffers: memory}
		found, err := s.check(ctx, verdicts, &read)
		if err != nil {
			return nil, 0, err
		}
		damage = append(damage, found...)
	}
	return damage, read.Load(), nil
}

// check reads the blocks without a verdict, and all files.
func (s *Snapshot) check(ctx context.Context, verdicts map[stored]error, read *atomic.Int64) (damage []*Damage,
	err error) {
	var mu sync.Mutex
	for _, c := range s.Manifest.contents() {
		var unread []run
		for _, r := range c.runs(c.inTurn) {
			known := c.Blocks[r.first] == (Sum{})
			if !known {
				_, known = verdicts[s.stored(c, r.first)]
			}
			for i := r.first + 1; known && i < r.end; i++ {
				_, known = verdicts[s.stored(c, i)]
			}
			if !known {
				unread = append(unread, r)
			}
		}
		err = s.buffers.each(ctx, len(unread), func(i int, buffer []byte) error {
			s.readRun(c, unread[i], buffer, false, func(block int, wrong error) {
				mu.Lock()
				defer mu.Unlock()
				verdicts[s.stored(c, block)] = wrong
			})
			read.Add(wholeBlocks(unread[i].length))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	told := map[string]bool{}
	for _, c := range s.Manifest.contents() {
		for i, sum := range c.Blocks {
			if sum == (Sum{}) {
				continue
			}
			if wrong := verdicts[s.stored(c, i)]; wrong != nil {
				if d := s.damage(c, i, wrong); !told[d.Path+d.What] {
					told[d.Path+d.What] = true
					damage = append(damage, d)
				}
			}
		}
	}
	for _, f := range s.Manifest.Files {
		wrong, err := s.verifyFile(ctx, f)
		if err != nil {
			return nil, err
		}
		if wrong != nil {
			damage = append(damage, wrong)
		}
		read.Add(f.Size)
	}
	return damage, nil
}
