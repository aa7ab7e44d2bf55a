package snapshot

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewMemory returns a file that is host memory, for contents of a size. None of it is taken yet. (memfd_create)
func NewMemory(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("tms contents", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("making a file in host memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "host memory")
	if err := file.Truncate(size); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("making a file of %d bytes in host memory: %w", size, err)
	}
	return file, nil
}

// Seal keeps a file that is host memory as it is, whoever has it open, and reports whether it could. A process that
// goes on can then neither change it nor cut it: the memory is free when its last descriptor is closed. Another file is
// left alone. (F_ADD_SEALS)
func Seal(file *os.File) (sealed bool, err error) {
	_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) { // a disk's; or one that was made without seals
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("sealing contents in host memory: %w", err)
	}
	return true, nil
}
