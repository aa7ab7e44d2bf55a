package tier

import "golang.org/x/sys/unix"

// hugePages mounts a tmpfs of huge pages and returns the descriptor of its directory. No path leads there, and the
// kernel drops it with its last file. -1: the process may not mount, as without root. (fsopen, fsmount)
func hugePages() (directory int) {
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1
	}
	defer func() { _ = unix.Close(context) }()
	for _, option := range [][2]string{{"huge", "always"}, {"size", "0"}, {"mode", "700"}} { // 0: no limit
		if unix.FsconfigSetString(context, option[0], option[1]) != nil {
			return -1
		}
	}
	if unix.FsconfigCreate(context) != nil {
		return -1
	}
	attributes := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if directory, err = unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes); err != nil {
		return -1
	}
	return directory
}

// memoryFile returns the descriptor of a file in host memory, in that directory. Without one, shmem_enabled says which
// pages it has. (memfd_create)
func memoryFile(directory int) (int, error) {
	if file, err := unix.Openat(directory, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
		return file, nil
	}
	return unix.MemfdCreate("tms-set", unix.MFD_CLOEXEC)
}
