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
	uses := map[Sum]use{}
	named := make([]map[Sum]bool, len(complete))
	var list []Entry
	for i, name := range complete {
		entry := Entry{Name: name}
		if m, err := d.readManifest(name); err != nil {
			entry.Problem = err.Error()
		} else {
			entry.Made, entry.Processes, entry.Needs = m.Made, m.Processes, m.Needs
			named[i] = map[Sum]bool{}
			for _, p := range m.Processes {
				entry.Contents += p.Bytes()
			}
			for _, f := range m.Pages {
				entry.Memory += f.Size
			}
			for _, c := range m.contents() {
				for k, sum := range c.Blocks {
					if sum != (Sum{}) && !named[i][sum] {
						named[i][sum] = true
						uses[sum] = use{wholeBlocks(c.length(k)), uses[sum].of + 1}
					}
				}
			}
			for _, f := range m.Files {
				entry.Files += f.Size
			}
			s := &Snapshot{Name: name, Manifest: m, directory: d}
			if missing := s.missing(); len(missing) > 0 {
				entry.Problem = missing[0].Error()
			}
		}
		list = append(list, entry)
	}
	for i := range complete {
		for sum := range named[i] {
			list[i].Blocks += uses[sum].bytes
			if uses[sum].of == 1 {
				list[i].Own += uses[sum].bytes
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
	verdicts := map[Sum]error{} // of blocks that were read
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
func (s *Snapshot) check(ctx context.Context, verdicts map[Sum]error, read *atomic.Int64) (damage []*Damage,
	err error) {
	type block struct {
		sum    Sum
		length int64
	}
	var unread []block
	named := map[Sum]bool{{}: true}
	var order []Sum
	for _, c := range s.Manifest.contents() {
		for i, sum := range c.Blocks {
			if named[sum] {
				continue
			}
			named[sum] = true
			order = append(order, sum)
			if _, read := verdicts[sum]; !read {
				unread = append(unread, block{sum, wholeBlocks(c.length(i))})
			}
		}
	}
	var mu sync.Mutex
	err = s.buffers.each(ctx, len(unread), func(i int, buffer []byte) error {
		verdict := s.directory.readBlock(unread[i].sum, buffer[:unread[i].length], false)
		read.Add(unread[i].length)
		mu.Lock()
		defer mu.Unlock()
		verdicts[unread[i].sum] = verdict
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, sum := range order {
		if wrong := verdicts[sum]; wrong != nil {
			damage = append(damage, &Damage{s.Name, s.directory.blockPath(sum), reason(wrong)})
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
