package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
)

// ErrContentsLost says that contents which waited on disk cannot come back. Nothing else has changed: the
// segments are paused, and can be freed. Each such error is a *Lost.
var ErrContentsLost = cuda.Refuse(cuda.FileNotFound, "contents are lost")

// errChanged: the file is not there, or is not what was written.
var errChanged = errors.New("not the file that was saved")

// Lost is the ErrContentsLost of one span.
type Lost struct {
	Address uintptr // somewhere in the span
	Path    string  // of the file
	Cause   error
}

func (l *Lost) Error() string {
	if errors.Is(l.Cause, errChanged) {
		return fmt.Sprintf("%v: %s is %v; free the memory and load its contents again", ErrContentsLost, l.Path,
			l.Cause)
	}
	return fmt.Sprintf("%v unless %s can be read again (%v); else free the memory and load its contents again",
		ErrContentsLost, l.Path, l.Cause)
}

func (l *Lost) Unwrap() []error { return []error{ErrContentsLost, l.Cause} }

// unreadable returns the error of a load that could not open or read a file.
func (f *diskFile) unreadable(address uintptr, cause error) error {
	if passes(cause) {
		return f.directory.failed("opening", f.path, cause)
	}
	if user := os.Geteuid(); errors.Is(cause, unix.EACCES) && user != f.owner {
		cause = fmt.Errorf("%w: it was written as user %d, and this process is user %d now", cause, f.owner, user)
	}
	return &Lost{Address: address, Path: f.path, Cause: cause}
}

// failed returns an ErrFailed that says what was being done to which path, and what can be done.
func (d *directory) failed(doing, path string, cause error) error {
	return fmt.Errorf("%w: %s %s: %w; %s", ErrFailed, doing, path, cause, d.advice(cause))
}

func (d *directory) advice(cause error) string {
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
		{errChanged, "something other than this process changed it; call again"},
	} {
		if errors.Is(cause, known.cause) {
			return known.words
		}
	}
	return d.elsewhere(" that can be written")
}

// elsewhere returns the advice to use another directory, which like describes.
func (d *directory) elsewhere(like string) string {
	switch setting := *d.setting.Load(); setting {
	case "TMS_DISK_BACKUP_DIR":
		return "set TMS_DISK_BACKUP_DIR to a directory" + like
	case "":
		return "it is the default: set TMS_DISK_BACKUP_DIR to a directory" + like
	case "TMPDIR":
		return "TMPDIR names it: set that, or TMS_DISK_BACKUP_DIR, to a directory" + like
	default: // a function
		return "call " + setting + " with a directory" + like
	}
}
