package tier

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/hostmemory"
)

// ledger is where processes promise the host memory that they are about to take.
var ledger = &hostmemory.Ledger{Directory: func() (string, error) {
	return control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
}}

// allocate gives a file its room, where the file system can do that. (fallocate)
func allocate(file *os.File, size int64) error {
	err := unix.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return file.Truncate(size) // a full disk is then found by the copy
	}
	return err
}

// isInMemory reports whether files in a directory, which may not be there yet, take host memory. (statfs)
func isInMemory(directory string) bool {
	for {
		var found unix.Statfs_t
		err := unix.Statfs(directory, &found)
		if parent := filepath.Dir(directory); errors.Is(err, unix.ENOENT) && parent != directory {
			directory = parent
			continue
		}
		return err == nil && (found.Type == unix.TMPFS_MAGIC || found.Type == unix.RAMFS_MAGIC)
	}
}
