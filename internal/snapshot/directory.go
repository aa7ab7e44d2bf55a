package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
)

const (
	blocksName = "blocks"
	lockName   = "lock"
	partial    = ".partial"
)

// Directory has snapshots, and the blocks that they share.
type Directory struct {
	path string
}

// Path returns the directory's absolute path.
func (d *Directory) Path() string { return d.path }

// Open opens a directory that Create has made. It must belong to this user or to root, and only the owner may write to
// it: a restore runs what is in it.
func Open(path string) (*Directory, error) {
	d, err := at(path)
	if err != nil {
		return nil, err
	}
	for _, folder := range []string{d.path, filepath.Join(d.path, blocksName)} {
		info, err := os.Stat(folder)
		if errors.Is(err, fs.ErrNotExist) && folder != d.path {
			return nil, fmt.Errorf("%s has no snapshots: \"tms snapshot PID DIR\" makes them", d.path)
		}
		if err != nil {
			return nil, d.failed("opening", folder, err)
		}
		if err := trusted(folder, info); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Create is Open for a directory that may be empty, or not be there yet.
func Create(path string) (*Directory, error) {
	d, err := at(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, d.failed("making", d.path, err)
	}
	blocks := filepath.Join(d.path, blocksName)
	if _, err := os.Stat(blocks); errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(d.path)
		if err != nil {
			return nil, d.failed("reading", d.path, err)
		}
		// Of two that create it at once, the second may find the first one's blocks here.
		for _, entry := range entries {
			if entry.Name() != lockName && entry.Name() != blocksName {
				return nil, fmt.Errorf("%s has other files (%s): name a new or an empty directory for snapshots", d.path,
					entry.Name())
			}
		}
		if err := os.Mkdir(blocks, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, d.failed("making", blocks, err)
		}
	}
	return Open(d.path)
}

func at(path string) (*Directory, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", path, err)
	}
	return &Directory{absolute}, nil
}

func trusted(path string, info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%s is no directory", path)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: a restore would run what that user put there; use that account, or copy "+
			"the directory", path, owner)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("others may write to %s (mode %#o), and a restore runs what is in it: chmod go-w %s", path, mode,
			path)
	}
	return nil
}

// lock is the directory's, until it is closed or this process ends.
func (d *Directory) lock(how int) (*os.File, error) {
	path := filepath.Join(d.path, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		file, err = os.Open(path) // a reader needs no more
	}
	if err != nil {
		return nil, d.failed("opening", path, err)
	}
	for {
		err = unix.Flock(int(file.Fd()), how)
		if err == nil {
			return file, nil
		}
		if err != unix.EINTR {
			_ = file.Close()
			return nil, err
		}
	}
}

// NewName returns a name for a snapshot of a process, which sorts by time.
func NewName(made time.Time, pid int) string {
	return fmt.Sprintf("%s-%d", made.UTC().Format("20060102T150405.000Z"), pid)
}

// names lists the snapshots, oldest first, and what is not complete.
func (d *Directory) names() (complete, incomplete []string, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, nil, d.failed("reading", d.path, err)
	}
	for _, entry := range entries {
		switch name := entry.Name(); {
		case !entry.IsDir() || name == blocksName:
		case strings.HasSuffix(name, partial):
			incomplete = append(incomplete, name)
		default:
			complete = append(complete, name)
		}
	}
	slices.Sort(complete)
	return complete, incomplete, nil
}

func goodName(name string) error {
	if name == "" || name != filepath.Base(name) || name[0] == '.' || name == blocksName || name == lockName ||
		strings.HasSuffix(name, partial) {
		return fmt.Errorf("%q cannot be the name of a snapshot", name)
	}
	return nil
}

// blockPath returns where a block is.
func (d *Directory) blockPath(sum Sum) string {
	name := sum.String()
	return filepath.Join(d.path, blocksName, name[:2], name)
}

// writeFile makes a file whose text is on the disk when it returns.
func writeFile(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = fallible("fsync", file.Sync)
	}
	return errors.Join(err, file.Close())
}

// fallible makes a system call whose failure matters, unless a test fails it by this name: see failpoint.
func fallible(name string, call func() error) error {
	if err := failpoint.Err(name); err != nil {
		return err
	}
	return call()
}

// Find is Open for a directory, or for the folder of one of its snapshots, whose name it returns then.
func Find(path string) (*Directory, string, error) {
	if _, err := os.Stat(filepath.Join(path, manifestName)); err != nil {
		d, err := Open(path)
		return d, "", err
	}
	folder, err := at(path)
	if err != nil {
		return nil, "", err
	}
	d, err := Open(filepath.Dir(folder.path))
	return d, filepath.Base(folder.path), err
}
