package snapshot

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	Blocks     int      `json:"blocks"`     // that no snapshot names
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
	named := map[string]bool{}
	for _, name := range complete {
		m, err := d.readManifest(name)
		if err != nil {
			return nil, fmt.Errorf("no block was removed, because the snapshot's list of blocks cannot be read: %w; remove "+
				"its folder to give it up", err)
		}
		for _, c := range m.contents() {
			for _, sum := range c.Blocks {
				named[sum.String()] = true
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
	return pruned, d.pruneBlocks(named, options, pruned)
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
