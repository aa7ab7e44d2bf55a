/* control has what the control socket needs in C: the variables that say where it is, read on a thread of the host, and
 * its removal when the process ends normally. */
#include "shim.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

HIDDEN struct control_environment control_environment;

HIDDEN void control_load(void)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR"), *temporary = getenv("TMPDIR");
	control_environment.runtime_dir = runtime ? region_intern(runtime) : NULL;
	control_environment.temporary = temporary ? region_intern(temporary) : NULL;
}

static struct {
	char path[PATH_MAX];
	dev_t device;
	ino_t inode;
	_Atomic bool bound;
	_Atomic uid_t user;
} socket_file;

HIDDEN void control_bound(const char *path, dev_t device, ino_t inode)
{
	atomic_store(&socket_file.bound, false);
	atomic_store(&socket_file.user, geteuid());
	socket_file.device = device;
	socket_file.inode = inode;
	int length = snprintf(socket_file.path, sizeof socket_file.path, "%s", path);
	atomic_store(&socket_file.bound, length < (int)sizeof socket_file.path);
}

HIDDEN bool control_found(uid_t *user)
{
	*user = atomic_load(&socket_file.user);
	return geteuid() == *user || geteuid() == 0; /* root looks where every user's sockets are */
}

/* A child has the parent's path but not its socket. If a process ends otherwise, the next client removes its socket. */
__attribute__((destructor)) static void at_exit(void)
{
	struct stat found;
	if (atomic_load(&socket_file.bound) && go_now() == GO_AWAKE && lstat(socket_file.path, &found) == 0 &&
	    found.st_dev == socket_file.device && found.st_ino == socket_file.inode)
		unlink(socket_file.path);
}
