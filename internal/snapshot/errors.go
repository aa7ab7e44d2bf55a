package snapshot

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse says that a prune cannot begin, because a snapshot is being made or restored.
var ErrInUse = errors.New("a snapshot is being made or restored there; try again when that has ended")

// Damage is what a snapshot lacks, or has wrong.
type Damage struct {
	Snapshot string `json:"snapshot"`
	Path     string `json:"path"`
	What     string `json:"what"`
}

func (d *Damage) Error() string {
	return fmt.Sprintf("snapshot %s cannot be restored: %s: %s", d.Snapshot, d.Path, d.What)
}

// reason returns an error without the path and the call, where the sentence names the path.
func reason(err error) string {
	if failed, ok := errors.AsType[*os.PathError](err); ok {
		err = failed.Err
	}
	return err.Error()
}

// failed returns the error of a file or folder in the directory, with what to do.
func (d *Directory) failed(doing, path string, cause error) error {
	advice := ""
	for _, known := range []struct {
		cause error
		words string
	}{
		{unix.ENOSPC, fmt.Sprintf("; free space there, for example with \"tms snapshots prune %s\"", d.path)},
		{unix.EDQUOT, "; free space in your quota, or name a directory on another file system"},
		{unix.EFBIG, "; raise the limit of file sizes (ulimit -f)"},
		{unix.EMFILE, "; raise the limit of open files (ulimit -n)"},
		{unix.EIO, "; the disk may be failing"},
		{unix.EROFS, "; name a directory that can be written"},
		{unix.EACCES, "; name a directory that you may use, or use the account that made it"},
	} {
		if errors.Is(cause, known.cause) {
			advice = known.words
			break
		}
	}
	if failed, ok := errors.AsType[*os.PathError](cause); ok {
		cause = failed.Err // its text repeats the path
	} else if failed, ok := errors.AsType[*os.LinkError](cause); ok {
		cause = failed.Err
	}
	return fmt.Errorf("%s %s: %w%s", doing, path, cause, advice)
}
