package store

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
)

// ErrContentsLost says that contents which waited on disk cannot come back. Nothing else has changed: the
// segments are paused, and can be freed. Each such error is a *Lost.
var ErrContentsLost = cuda.Refuse(cuda.FileNotFound, "contents are lost")

// Lost is the ErrContentsLost of one span.
type Lost struct {
	Address   uintptr // somewhere in the span
	Directory string  // of the file
	Cause     error
}

func (l *Lost) Error() string {
	return fmt.Sprintf("%v unless their file in %s can be read again (%v); else free the memory and load its contents "+
		"again", ErrContentsLost, l.Directory, l.Cause)
}

func (l *Lost) Unwrap() []error { return []error{ErrContentsLost, l.Cause} }

// unreadable returns the error of a load that could not open or read a file.
func (f *diskFile) unreadable(address uintptr, cause error) error {
	if errors.Is(cause, f.directory.refusal()) {
		return cause
	}
	return &Lost{Address: address, Directory: f.directory.path, Cause: cause}
}

// unreached returns an ErrDisk of the thread that holds files: what could not be done with one, and what can be done.
func (d *Directory) unreached(done string, cause error) error {
	advice := "call again, or have contents wait in host memory"
	if d.memory {
		advice = "call again"
	}
	if errors.Is(cause, unix.EMFILE) || errors.Is(cause, unix.ENFILE) {
		advice = d.advice(cause)
	}
	return fmt.Errorf("%w: a file in %s cannot be %s: %w; %s", d.refusal(), d.path, done, cause, advice)
}

// failed returns an ErrDisk that says what was being done to the directory, and what can be done.
func (d *Directory) failed(doing string, cause error) error {
	return fmt.Errorf("%w: %s %s: %w; %s", d.refusal(), doing, d.path, cause, d.advice(cause))
}

func (d *Directory) refusal() error {
	if d.memory {
		return errMemory
	}
	return ErrDisk
}

// errMemory is ErrDisk for files that are host memory.
var errMemory = cuda.Refuse(cuda.OperatingSystem, "contents cannot wait in files in host memory")

func (d *Directory) advice(cause error) string {
	for _, known := range []struct {
		cause error
		words string
	}{
		{unix.ENOSPC, "free space there, or " + d.elsewhere(" with more")},
		{unix.EDQUOT, "free space in your quota, or " + d.elsewhere(" on another file system")},
		{unix.EFBIG, "raise the limit of file sizes (ulimit -f), or " + d.elsewhere(" on another file system")},
		{unix.EMFILE, "raise the limit of open files (ulimit -n)"},
		{unix.ENFILE, "the system has too many open files"},
		{unix.ENOMEM, "free host memory"},
		{unix.EIO, "the disk may be failing; call again, or " + d.elsewhere(" on another")},
	} {
		if errors.Is(cause, known.cause) {
			return known.words
		}
	}
	return d.elsewhere(" that can be written")
}

// elsewhere returns the advice to use another directory, which like describes.
func (d *Directory) elsewhere(like string) string {
	if d.memory {
		return "free host memory, or have contents wait on a disk"
	}
	switch d.setting {
	case "TMS_DISK_BACKUP_DIR":
		return "set TMS_DISK_BACKUP_DIR to a directory" + like
	case "":
		return "it is the default: set TMS_DISK_BACKUP_DIR to a directory" + like
	case "TMPDIR":
		return "TMPDIR names it: set that, or TMS_DISK_BACKUP_DIR, to a directory" + like
	default: // a function
		return "call " + d.setting + " with a directory" + like
	}
}
