package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/snapshot"
)

// CRIU opens the files of /dev/shm by their names, and neither dumps nor restores them. They are memory that the
// processes share, such as semaphores and queues of Python's multiprocessing, so a snapshot has them. A file whose first
// name is gone has another from CRIU for the time of the dump (link_remap), which CRIU removes after a restore.

const (
	sharedMemory = "/dev/shm"
	remap        = "link_remap."
)

// remaps lists names that CRIU has made there for this user, with their inodes: a command that is killed leaves both.
var remaps = fmt.Sprint(sharedMemory, "/tms-remaps-", os.Geteuid())

// eachShared calls see once for each file in shared memory or without a name that processes have open or mapped, with its
// path. Memory that processes share is such a file, too.
func eachShared(processes []snapshot.Process, see func(path string, is *syscall.Stat_t)) {
	type file struct{ device, inode uint64 }
	seen := map[file]bool{}
	for _, p := range processes {
		for _, pattern := range []string{"/proc/%d/fd/*", "/proc/%d/map_files/*"} {
			links, _ := filepath.Glob(fmt.Sprintf(pattern, p.PID))
			for _, link := range links {
				path, _ := os.Readlink(link)
				var is syscall.Stat_t
				shared := strings.HasPrefix(path, sharedMemory+"/") || strings.HasSuffix(path, " (deleted)")
				if !shared || syscall.Stat(link, &is) != nil || seen[file{is.Dev, is.Ino}] {
					continue
				}
				seen[file{is.Dev, is.Ino}] = true
				see(path, &is)
			}
		}
	}
}

// saveShared copies the files of shared memory that processes, which stand still, have open or mapped.
func saveShared(t *Tree, folder string) (all []snapshot.Shared, err error) {
	used := map[uint64]bool{} // by inode
	eachShared(t.Processes, func(path string, is *syscall.Stat_t) {
		if strings.HasPrefix(path, sharedMemory+"/") {
			used[is.Ino] = true
		}
	})
	entries, err := os.ReadDir(sharedMemory)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	saved := map[uint64]string{}
	for _, entry := range entries {
		info, gone := entry.Info()
		if gone != nil || !info.Mode().IsRegular() {
			continue
		}
		stat := info.Sys().(*syscall.Stat_t)
		if !used[stat.Ino] {
			continue
		}
		if saved[stat.Ino] == "" {
			path := fmt.Sprint("shared-", len(saved))
			if err := copyFile(filepath.Join(folder, path), filepath.Join(sharedMemory, entry.Name())); err != nil {
				return nil, err
			}
			saved[stat.Ino] = path
		}
		all = append(all, snapshot.Shared{Name: entry.Name(), Path: saved[stat.Ino], Mode: stat.Mode & 0o7777,
			User: int(stat.Uid), Group: int(stat.Gid)})
	}
	return all, err
}

// lockShared has dumps and restores come one after another: CRIU numbers the names that it makes from 1 on. What a killed
// command has left of such names goes first. If it waits, it says so, and reports it. CRIU gets the lock as well, and so
// has it where this command is killed. (flock)
func lockShared(ctx context.Context, say func(string)) (lock *os.File, unlock func(), waited bool, err error) {
	folder, err := os.Open(sharedMemory)
	if err != nil {
		return nil, func() {}, false, nil // there is none
	}
	for {
		err = unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			dropRemaps()
			return folder, sync.OnceFunc(func() {
				_ = step("drop")
				dropRemaps()
				_, _ = step("unlock"), unix.Flock(int(folder.Fd()), unix.LOCK_UN)
				_ = folder.Close()
			}), waited, nil
		}
		if err == unix.EWOULDBLOCK {
			if !waited && say != nil {
				say("another snapshot or restore has " + sharedMemory + " locked; waiting until it has ended")
			}
			waited, err = true, nil
			select {
			case <-ctx.Done():
				err = context.Cause(ctx)
			case <-time.After(10 * time.Millisecond):
			}
		}
		if err != nil && err != unix.EINTR {
			_ = folder.Close()
			return nil, nil, waited, fmt.Errorf("locking %s: %w", sharedMemory, err)
		}
	}
}

// noteRemaps lists the names that CRIU has made, or will remove after a restore, which are there now.
func noteRemaps(all []snapshot.Shared) error {
	list := remapsAmong(all)
	if list == "" {
		return nil
	}
	_ = os.Remove(remaps) // another user may have made it, and could not have been believed
	file, err := os.OpenFile(remaps, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s cannot be replaced by the list of CRIU's names in shared memory: remove it", remaps)
	}
	if err == nil {
		_, err = file.WriteString(list)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("listing CRIU's names in shared memory: %w", err)
	}
	return nil
}

// remapsAmong returns a line for each of CRIU's names that is there now.
func remapsAmong(all []snapshot.Shared) string {
	var list strings.Builder
	for _, shared := range all {
		name := filepath.Base(shared.Name)
		var is syscall.Stat_t
		if strings.HasPrefix(name, remap) && syscall.Lstat(filepath.Join(sharedMemory, name), &is) == nil {
			fmt.Fprintln(&list, is.Ino, name)
		}
	}
	return list.String()
}

// dropRemaps removes the names that are listed. Without the lock they may be another dump's.
func dropRemaps() {
	// What another user has put there is not believed, nor waited for, as a FIFO would be.
	file, err := os.OpenFile(remaps, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		return
	}
	text, _ := io.ReadAll(file)
	dropListed(string(text))
	_ = os.Remove(remaps)
}

// dropListed removes names that are still of the same files: a restore gets its own.
func dropListed(list string) {
	for line := range strings.Lines(list) {
		inode, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		path := filepath.Join(sharedMemory, filepath.Base(name))
		var is syscall.Stat_t
		if strings.HasPrefix(name, remap) && syscall.Lstat(path, &is) == nil && strconv.FormatUint(is.Ino, 10) == inode {
			_ = os.Remove(path)
		}
	}
}

// putListed puts a snapshot's files into shared memory, and lists CRIU's names among them for dropRemaps. A full /dev/shm
// may have room for some of the names and for no list: then the names go at once.
func putListed(folder string, all []snapshot.Shared) error {
	err := putShared(folder, all)
	unlisted := noteRemaps(all)
	if unlisted != nil {
		dropListed(remapsAmong(all))
	}
	return errors.Join(err, unlisted)
}

// putShared puts a snapshot's files into shared memory. A file of that name that is there already stays as it is for whoever has it open.
func putShared(folder string, all []snapshot.Shared) error {
	put := map[string]string{}
	for _, shared := range all {
		name := filepath.Join(sharedMemory, filepath.Base(shared.Name))
		partial := fmt.Sprintf("%s.%d", name, os.Getpid())
		var err error
		if first := put[shared.Path]; first != "" {
			err = os.Link(first, partial)
		} else if err = copyFile(partial, filepath.Join(folder, shared.Path)); err == nil {
			err = errors.Join(os.Chown(partial, shared.User, shared.Group), syscall.Chmod(partial, shared.Mode))
		}
		if err == nil {
			err = os.Rename(partial, name)
		}
		if err != nil {
			_ = os.Remove(partial)
			return fmt.Errorf("the shared memory of the program cannot be put back: %w", err)
		}
		put[shared.Path] = name
	}
	return nil
}

// sharedBytes returns how many bytes putShared writes.
func sharedBytes(folder string, all []snapshot.Shared) (bytes uint64) {
	counted := map[string]bool{}
	for _, shared := range all {
		file, err := os.Open(filepath.Join(folder, shared.Path))
		if err == nil && !counted[shared.Path] { // else putShared says what is wrong
			_, err = eachData(file, func(_, length int64) error { bytes += uint64(length); return nil })
		}
		counted[shared.Path] = err == nil
		_ = file.Close()
	}
	return bytes
}

// copyFile leaves holes where the file has them.
func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	size, err := eachData(source, func(from, length int64) error {
		for _, file := range []*os.File{source, target} {
			if _, err := file.Seek(from, io.SeekStart); err != nil {
				return err
			}
		}
		_, err := io.Copy(target, io.LimitReader(source, length))
		return err
	})
	return errors.Join(err, target.Truncate(size), target.Close())
}

// eachData calls do for the parts of a file that are no holes, and returns its size.
func eachData(file *os.File, do func(from, length int64) error) (size int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	for end := int64(0); end < info.Size(); {
		from, err := file.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole to the end
		}
		if err == nil {
			end, err = file.Seek(from, unix.SEEK_HOLE)
		}
		if err == nil {
			err = do(from, end-from)
		}
		if err != nil {
			return 0, err
		}
	}
	return info.Size(), nil
}
