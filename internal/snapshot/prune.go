package snapshot

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// PruneOptions say what a prune takes.
type PruneOptions struct {
	// Keep, unless 0, is how many of the newest snapshots stay.
	Keep int
	// PID, unless 0, has Keep count only snapshots whose first process has this number, and no others are removed.
	PID int
	// DryRun takes nothing.
	DryRun bool
}

// Pruned is what a prune has taken, or would take.
type Pruned struct {
	Snapshots  []string `json:"snapshots"`  // beyond those to keep
	Incomplete []string `json:"incomplete"` // folders of snapshots that are not complete
	Blocks     int      `json:"blocks"`     // that no snapshot names; in packs, those that follow each other are one
	Bytes      int64    `json:"bytes"`      // of these blocks, and of what was left of blocks that were not complete
}

// counts reports whether Keep counts a snapshot, by its name.
func (o PruneOptions) counts(name string) bool {
	return o.PID == 0 || strings.HasSuffix(name, fmt.Sprintf("-%d", o.PID))
}

// Prune takes what was left of snapshots that are not complete, and blocks that no snapshot names. It takes no block
// where a snapshot cannot be read. Errors: ErrInUse, *Damage.
func (d *Directory) Prune(options PruneOptions) (*Pruned, error) {
	lock, err := d.lock(unix.LOCK_EX | unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return nil, fmt.Errorf("%s: %w", d.path, ErrInUse)
	}
	if err != nil {
		return nil, d.failed("locking", d.path, err)
	}
	defer lock.Close()
	complete, incomplete, err := d.names()
	if err != nil {
		return nil, err
	}
	pruned := &Pruned{Snapshots: []string{}, Incomplete: append([]string{}, incomplete...)}
	if options.Keep > 0 {
		counts := slices.DeleteFunc(slices.Clone(complete), func(name string) bool { return !options.counts(name) })
		pruned.Snapshots = append(pruned.Snapshots, counts[:max(0, len(counts)-options.Keep)]...)
		complete = slices.DeleteFunc(complete, func(name string) bool { return slices.Contains(pruned.Snapshots, name) })
	}
	named, used := map[string]bool{}, map[string][]part{}
	for _, name := range complete {
		m, err := d.readManifest(name)
		if err != nil {
			return nil, fmt.Errorf("no block was removed, because the snapshot's list of blocks cannot be read: %w; remove "+
				"its folder to give it up", err)
		}
		for _, c := range m.contents() {
			for i, sum := range c.Blocks {
				if c.Places == nil {
					named[sum.String()] = true
				} else if sum != (Sum{}) {
					pack := m.Packs[c.Places[i][0]]
					used[pack] = append(used[pack], part{c.Places[i][1], c.Places[i][1] + c.length(i)})
				}
			}
		}
	}
	for _, name := range pruned.Snapshots { // first its name, so that what is left of it is never restored
		if options.DryRun {
			continue
		}
		path := filepath.Join(d.path, name)
		if err := os.Rename(path, path+partial); err != nil {
			return nil, d.failed("removing", path, err)
		}
		incomplete = append(incomplete, name+partial)
	}
	for _, name := range incomplete {
		if path := filepath.Join(d.path, name); !options.DryRun {
			if err := os.RemoveAll(path); err != nil {
				return nil, d.failed("removing", path, err)
			}
		}
	}
	if err := d.pruneBlocks(named, options, pruned); err != nil {
		return pruned, err
	}
	return pruned, d.prunePacks(used, options, pruned)
}

func (d *Directory) pruneBlocks(named map[string]bool, options PruneOptions, pruned *Pruned) error {
	blocks := filepath.Join(d.path, blocksName)
	folders, err := os.ReadDir(blocks)
	if err != nil {
		return d.failed("reading", blocks, err)
	}
	for _, entry := range folders {
		folder := filepath.Join(blocks, entry.Name())
		if !entry.IsDir() {
			continue
		}
		entries, err := os.ReadDir(folder)
		if err != nil {
			return d.failed("reading", folder, err)
		}
		for _, entry := range entries {
			name := entry.Name()
			// Only what a writer makes: 64 digits, and for a block that is not complete two numbers.
			if sum, err := hex.DecodeString(name[:min(len(name), 64)]); err != nil || len(sum) != len(Sum{}) || named[name] {
				continue
			}
			info, err := entry.Info()
			if err != nil {
				return d.failed("reading", filepath.Join(folder, name), err)
			}
			if !options.DryRun {
				if err := os.Remove(filepath.Join(folder, name)); err != nil {
					return d.failed("removing", filepath.Join(folder, name), err)
				}
			}
			pruned.Blocks++
			pruned.Bytes += info.Size()
		}
	}
	return nil
}

// part is a range of a pack.
type part struct{ from, to int64 }

// prunePacks removes packs in which no snapshot has a block. From the others it takes the blocks that no snapshot names:
// they become holes, so what is left stays where the manifests say. A file system that makes no holes or has no room for
// them, and a pack that has another name elsewhere (a copy by hard links), keep them until the whole pack can go; a dry
// run knows only of the latter. (FALLOC_FL_PUNCH_HOLE)
func (d *Directory) prunePacks(used map[string][]part, options PruneOptions, pruned *Pruned) error {
	entries, err := os.ReadDir(d.packPath(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return d.failed("reading", d.packPath(""), err)
	}
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { // a full disk may need the room of dead ones for holes
		return cmp.Compare(len(used[a.Name()]), len(used[b.Name()]))
	})
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		path, parts := d.packPath(entry.Name()), used[entry.Name()]
		err := d.punch(path, parts, options, pruned)
		if err == nil && len(parts) == 0 && !options.DryRun {
			err = os.Remove(path)
		}
		if err != nil {
			return d.failed("removing blocks of", path, err)
		}
	}
	return nil
}

// punch takes what a pack has outside of the parts that are used.
func (d *Directory) punch(path string, used []part, options PruneOptions, pruned *Pruned) error {
	flags := os.O_RDONLY
	if len(used) > 0 && !options.DryRun {
		flags = os.O_RDWR
	}
	file, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if len(used) > 0 && info.Sys().(*syscall.Stat_t).Nlink > 1 {
		return nil
	}
	slices.SortFunc(used, func(a, b part) int { return cmp.Compare(a.from, b.from) })
	from := int64(0)
	for _, next := range append(used, part{info.Size(), info.Size()}) {
		for from < next.from {
			unused := nextData(int(file.Fd()), part{from, next.from})
			if unused.from == unused.to {
				break
			}
			if !options.DryRun && len(used) > 0 {
				err := fallible("fallocate", func() error {
					return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, unused.from,
						unused.to-unused.from)
				})
				if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
					return nil
				}
				if err != nil {
					return err
				}
			}
			pruned.Blocks++
			pruned.Bytes += unused.to - unused.from
			from = unused.to
		}
		from = max(from, next.to)
	}
	return nil
}

// nextData returns the first part of a range that is no hole.
func nextData(fd int, of part) part {
	from, err := unix.Seek(fd, of.from, unix.SEEK_DATA)
	if err != nil || from >= of.to {
		return part{of.to, of.to}
	}
	to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
	if err != nil {
		to = of.to
	}
	return part{from, min(to, of.to)}
}
