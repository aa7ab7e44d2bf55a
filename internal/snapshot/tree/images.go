package tree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/internal/machine/hostmemory"
	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// CRIU writes the private memory of processes again for each snapshot. So its files of pages become blocks, which
// snapshots share, and a restore makes them again in memory.

// staging is the folder in which files are put while the program stands still: in memory, from where they go to the disk
// when the program goes on, or the snapshot's own, where memory is short.
type staging struct {
	path   string   // its own, or by its descriptor
	memory *os.File // the folder in memory, or nil
	images *os.File // the folder in it that CRIU writes to
	whole  bool     // files of pages stay as they are, because a restore could not put them together here
	note   string   // why it is not in memory, or ""
}

// stage makes the folder for CRIU's files. The processes stand still, and their contents are in host memory already.
func stage(tree *Tree, own string) (s *staging, err error) {
	s = &staging{path: own}
	s.memory, err = folderInMemory()
	if s.whole = err != nil; s.whole {
		s.note = fmt.Sprintf("there is no folder in memory (%v), so CRIU wrote to the disk while the program stood still, and "+
			"the snapshot does not share its host memory with others", err)
	} else if short := roomFor(memoryOf(tree.now()), hostmemory.Available("self", nil)); short != nil {
		s.note = fmt.Sprintf("%v, so CRIU wrote to the disk while the program stood still", short)
		_ = s.memory.Close()
		s.memory = nil
	} else {
		s.path = fmt.Sprintf("/proc/self/fd/%d", s.memory.Fd())
	}
	if err = os.Mkdir(filepath.Join(s.path, images), 0o700); err == nil {
		s.images, err = os.Open(filepath.Join(s.path, images))
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// roomFor returns an error unless there is room in host memory for all that CRIU may write, and a quarter of it more:
// the kernel would end some program where there is none.
func roomFor(needed, available uint64) error {
	if needed+needed/4 <= available {
		return step("room")
	}
	return fmt.Errorf("the processes have %s of host memory, and %s is available for a copy", readable.Bytes(needed),
		readable.Bytes(available))
}

// memoryOf returns how many bytes of the processes' memory CRIU and saveShared will write at most.
func memoryOf(processes []snapshot.Process) (bytes uint64) {
	for _, p := range processes {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
		for line := range strings.Lines(string(status)) {
			fields := strings.Fields(line)
			if len(fields) > 1 && slices.Contains([]string{"RssAnon:", "HugetlbPages:", "VmSwap:"}, fields[0]) {
				kib, _ := strconv.ParseUint(fields[1], 10, 64)
				bytes += kib << 10
			}
		}
	}
	eachShared(processes, func(_ string, is *syscall.Stat_t) { bytes += uint64(is.Blocks) * 512 })
	return bytes
}

func (s *staging) close() {
	for _, folder := range []*os.File{s.images, s.memory} {
		if folder != nil {
			_ = folder.Close()
		}
	}
}

// keep puts what is in the folder into the snapshot: the private memory that CRIU has written into blocks, and all other
// files into its own folder.
func (s *staging) keep(ctx context.Context, writer *snapshot.Writer) (pages []snapshot.File, err error) {
	if !s.whole {
		if pages, err = savePages(ctx, writer, filepath.Join(s.path, images)); err != nil {
			return nil, err
		}
	}
	if s.memory == nil {
		return pages, nil
	}
	if err = os.Mkdir(filepath.Join(writer.Folder(), images), 0o700); err != nil {
		return nil, err
	}
	return pages, filepath.WalkDir(s.path+"/", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return cmp.Or(step("images"), copyFile(filepath.Join(writer.Folder(), strings.TrimPrefix(path, s.path)), path))
	})
}

// savePages puts the private memory that CRIU has written into blocks, and removes its files.
func savePages(ctx context.Context, writer *snapshot.Writer, folder string) (files []snapshot.File, err error) {
	all, err := criu.FindPages(folder, snapshot.PageBlockSize)
	if err != nil {
		return nil, fmt.Errorf("reading what CRIU has written: %w", err)
	}
	for _, pages := range all {
		if err := step("pages"); err != nil {
			return nil, err
		}
		file, err := os.OpenFile(filepath.Join(folder, pages.Name), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		content, err := writer.AddPages(ctx, file, pages.Lengths)
		if err = errors.Join(err, file.Close()); err == nil {
			err = os.Remove(file.Name())
		}
		if err != nil {
			return nil, err
		}
		files = append(files, snapshot.File{Path: filepath.Join(images, pages.Name), Content: content})
	}
	return files, nil
}

// imagesFor returns a folder that has all of CRIU's files: one in memory without a path, with links to the snapshot's own
// and with the files of pages. It is gone when all that have it open have closed it. Where there is none, a snapshot
// without files of pages has its own.
func imagesFor(ctx context.Context, s *snapshot.Snapshot) (folder *os.File, inMemory bool, err error) {
	own := filepath.Join(s.Folder(), images)
	entries, err := os.ReadDir(own)
	if err != nil {
		return nil, false, err
	}
	folder, err = folderInMemory()
	if err != nil && len(s.Manifest.Pages) == 0 {
		folder, err = os.Open(own)
		return folder, false, err
	}
	if err != nil {
		return nil, false, fmt.Errorf("making a folder in memory (fsopen, fsconfig, fsmount): %w. It needs Linux 5.2 or "+
			"later, CAP_SYS_ADMIN, and a seccomp profile that allows these calls", err)
	}
	for _, entry := range entries {
		if err = unix.Symlinkat(filepath.Join(own, entry.Name()), int(folder.Fd()), entry.Name()); err != nil {
			err = fmt.Errorf("making a link to %s: %w", entry.Name(), err)
			break
		}
	}
	for _, pages := range s.Manifest.Pages {
		if err == nil {
			err = putPages(ctx, s, pages, folder)
		}
	}
	if err != nil {
		_ = folder.Close()
		return nil, false, err
	}
	return folder, true, nil
}

// folderInMemory mounts a file system in memory at no place. (fsopen, fsmount)
func folderInMemory() (*os.File, error) {
	if err := step("folder"); err != nil {
		return nil, err
	}
	system, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(system)
	for _, option := range []struct{ name, value string }{{"size", "0"}, {"nr_inodes", "0"}, {"mode", "0700"}} { // 0: no limit
		if err := unix.FsconfigSetString(system, option.name, option.value); err != nil {
			return nil, fmt.Errorf("%s=%s: %w", option.name, option.value, err)
		}
	}
	// A restore takes less time with huge pages. A kernel without them refuses this.
	_ = unix.FsconfigSetString(system, "huge", "within_size")
	if err := unix.FsconfigCreate(system); err != nil {
		return nil, err
	}
	mount, err := unix.Fsmount(system, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mount) // which ends the mount, but not the folder that is open
	folder, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(folder), "images"), nil
}

func putPages(ctx context.Context, s *snapshot.Snapshot, pages snapshot.File, folder *os.File) error {
	if err := step("pages"); err != nil {
		return err
	}
	fd, err := unix.Openat(int(folder.Fd()), filepath.Base(pages.Path), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC,
		0o600)
	if err != nil {
		return fmt.Errorf("making %s in memory: %w", pages.Path, err)
	}
	file := os.NewFile(uintptr(fd), pages.Path)
	return errors.Join(s.Copy(ctx, pages.Content, file), file.Close())
}

const openFiles = "files.img" // CRIU's list of what processes have open

// imagesInNamespace fills a folder for processes that get a PID namespace of their own: with links to CRIU's files, and
// with a list of open files that has the driver's sockets by the names that they have there. into is in the same file
// system in memory as the files of pages.
func imagesInNamespace(from, into *os.File, namespace string) error {
	all := fmt.Sprintf("/proc/self/fd/%d", from.Fd())
	entries, err := os.ReadDir(all)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path, target := filepath.Join(all, entry.Name()), ""
		switch {
		case entry.Name() == openFiles:
			err = putFiles(path, into, namespace)
		case entry.Type()&fs.ModeSymlink != 0:
			if target, err = os.Readlink(path); err == nil {
				err = unix.Symlinkat(target, int(into.Fd()), entry.Name())
			}
		case entry.Type().IsRegular():
			err = unix.Linkat(int(from.Fd()), entry.Name(), int(into.Fd()), entry.Name(), 0)
		}
		if err != nil {
			return fmt.Errorf("making a link to %s: %w", entry.Name(), err)
		}
	}
	return nil
}

// putFiles makes the list of open files. One whose form is not known stays as it is.
func putFiles(path string, into *os.File, namespace string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if renamed, err := criu.InNamespace(text, namespace); err == nil {
		text = renamed
	}
	return os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/%s", into.Fd(), openFiles), text, 0o600)
}

// folderIn makes a folder in one that may have no path.
func folderIn(parent *os.File, name string) (*os.File, error) {
	path := filepath.Join(fmt.Sprintf("/proc/self/fd/%d", parent.Fd()), name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	return os.Open(path)
}
