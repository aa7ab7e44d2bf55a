/* stat has the functions that glibc has under these names since 2.33 only, for libtms.so and for the simulator. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN int stat(const char *path, struct stat *found)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, 0);
}

HIDDEN int lstat(const char *path, struct stat *found)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}

HIDDEN int fstat(int descriptor, struct stat *found)
{
	return (int)syscall(SYS_fstat, descriptor, found);
}
