#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/folder.h"

#define ENOUGH (1ull << 30)

// A container's /dev/shm has 64 MiB, and whoever writes past its end gets SIGBUS. Some machines have none. The choice
// must be the same in all processes, so it does not depend on how much is free.
static bool is_roomy(const char *system)
{
	struct statvfs of;
	return !statvfs(system, &of) && !(of.f_flag & ST_RDONLY) && !access(system, W_OK) &&
	       (!of.f_blocks || (uint64_t)of.f_blocks * of.f_frsize >= ENOUGH);
}

static bool is_own(const char *path)
{
	struct stat status;
	if ((mkdir(path, 0700) && errno != EEXIST) || lstat(path, &status))
		return false;
	errno = EPERM;
	return S_ISDIR(status.st_mode) && status.st_uid == geteuid() && !(status.st_mode & 077);
}

// In a user namespace, root's folder may be that of another root.
bool folder_find(struct folder *folder)
{
	const char *system = is_roomy("/dev/shm") ? "/dev/shm" : "/tmp";
	struct stat namespace;
	snprintf(folder->path, sizeof folder->path, "%s/cudasim-%u", system, geteuid());
	if (is_own(folder->path))
		return true;
	if (stat("/proc/self/ns/user", &namespace))
		return false;
	snprintf(folder->path, sizeof folder->path, "%s/cudasim-%u-%lu", system, geteuid(), (unsigned long)namespace.st_ino);
	return is_own(folder->path);
}
