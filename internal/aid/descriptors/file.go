package descriptors

import "golang.org/x/sys/unix"

// File says which file a descriptor stands for. A program may close a descriptor of the library, and open a file of its
// own under the number. A File is no other one's as long as a descriptor of it is open.
type File struct{ device, inode uint64 }

// FileOf returns the file of a descriptor. (fstat)
func FileOf(descriptor int) (File, error) {
	var found unix.Stat_t
	err := unix.Fstat(descriptor, &found)
	return File{uint64(found.Dev), found.Ino}, err
}

// Is reports whether a descriptor stands for the file.
func (f File) Is(descriptor int) bool {
	found, err := FileOf(descriptor)
	return descriptor >= 0 && err == nil && found == f
}
