/* leftovers removes the files that have contents when the process ends by exit while it is paused. Those of a process
 * that ends otherwise are removed by the next that uses their folder (vmm/backup/disk). */
#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Folders, and how the names of this process's files begin there. Append-only. */
enum { FOLDERS = 16 };
static struct {
	const char *path, *prefix;
} folders[FOLDERS];
static _Atomic int used;
static _Atomic pid_t process; /* not its children, whose exit would take the parent's contents */

static void remove_from(const char *path, const char *prefix)
{
	DIR *folder = opendir(path);
	for (struct dirent *entry; folder && (entry = readdir(folder));)
		if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
			unlinkat(dirfd(folder), entry->d_name, 0);
	if (folder)
		closedir(folder);
}

__attribute__((destructor)) static void remove_all(void)
{
	int count = atomic_load(&used);
	if (count == 0 || atomic_load(&process) != getpid())
		return;
	for (int i = 0; i < count && i < FOLDERS; i++)
		remove_from(folders[i].path, folders[i].prefix);
}

HIDDEN void leftovers_note(const char *path, const char *prefix)
{
	int at = atomic_load(&used);
	path = region_intern(path);
	prefix = region_intern(prefix);
	if (!path || !prefix || at == FOLDERS)
		return;
	folders[at].path = path;
	folders[at].prefix = prefix;
	if (at == 0) {
		atomic_store(&process, getpid());
		at_quick_exit(remove_all);
	}
	atomic_store(&used, at + 1);
}
