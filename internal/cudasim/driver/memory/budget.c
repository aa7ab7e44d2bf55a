// How much of the devices' memory is in use: by this process, or by all that share the devices (CUDASIM_SHARED),
// although they never share contents.
//
// The processes share a file in memory (base/folder.h) that each maps, with a lock for changes (flock) and a member for each process
// with what it holds. A member counts only while its process has a lock on the member's place (F_OFD_SETLK), so the
// memory of a killed process is free at the next look. The last process to leave removes the file; the next process to
// start removes one that killed processes left.
//
// Memory that outlives its maker is a file beside that one. Each holder of a descriptor holds a lock on it (flock), so
// the memory is free when the last lock ends, and the next look removes the file.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/process.h"
#include "memory/memory.h"

enum { MEMBERS = 256 };

struct member {
	pid_t process;              // 0: none
	uint64_t used[MAX_DEVICES]; // by its own numbers of devices
	int places[MAX_DEVICES];    // which of the machine's devices those are
	bool lent; // the others may have its memory: it is checkpointed
};

static struct segment { // each change is one store, so a killed process leaves nothing half done
	uint64_t memory; // of each device, as the first member set it
	struct member members[MEMBERS];
} *segment; // NULL: nothing is shared
static struct member *own;
static char file[192]; // its path
static int descriptor; // of the file

// Where the files are, and how those end of processes that see one another, with one layout.
static struct location {
	struct folder folder;
	char suffix[48];
} location;

static bool lock(int fd, int how)
{
	int error;
	while ((error = flock(fd, how)) && errno == EINTR)
		;
	return !error;
}

// Asks for the lock on a member's place, or takes it; returns false if a process has it.
static bool place_is_free(int fd, int command, int member)
{
	struct flock place = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member, .l_len = 1};
	return !fcntl(fd, command, &place) && (command == F_OFD_SETLK || place.l_type == F_UNLCK);
}

// Drops the members whose processes have ended; returns whether any is left.
static bool drop_dead(struct segment *of, int fd)
{
	bool left = false;
	for (int i = 0; i < MEMBERS; i++) {
		struct member *member = &of->members[i];
		if (member->process && member != own && place_is_free(fd, F_OFD_GETLK, i))
			member->process = 0;
		left |= member->process != 0;
	}
	return left;
}

// Returns the file's segment, locked, and its descriptor; or NULL, and errno says why. Removing the file takes the
// lock, so a file that still has its name keeps it. make: waits for the lock, and makes the file if there is none.
static struct segment *attach(const char *path, bool make, int *fd)
{
	for (;;) {
		struct stat status = {.st_nlink = 1};
		struct segment *found = MAP_FAILED;
		*fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (make ? O_CREAT : 0), 0600);
		if (*fd < 0)
			return NULL;
		if (lock(*fd, LOCK_EX | (make ? 0 : LOCK_NB)) && !fstat(*fd, &status) && status.st_nlink &&
		    ((size_t)status.st_size >= sizeof *found || !(errno = posix_fallocate(*fd, 0, sizeof *found))))
			found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
		if (found != MAP_FAILED)
			return found;
		int error = errno;
		close(*fd);
		errno = error;
		if (status.st_nlink)
			return NULL;
	}
}

static void detach(struct segment *of, int fd, const char *path)
{
	if (!drop_dead(of, fd))
		unlink(path);
	munmap(of, sizeof *of);
	lock(fd, LOCK_UN); // a child that was just forked may have the descriptor, too
	close(fd);
}

#define OUTLIVES ".memory"

static bool ends_in(const char *text, const char *end)
{
	size_t length = strlen(text), size = strlen(end);
	return length > size && !strcmp(text + length - size, end);
}

// Reports whether a process holds memory by its file, which is removed otherwise.
static bool is_held(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool held = flock(fd, LOCK_EX | LOCK_NB);
	if (!held)
		unlink(path);
	close(fd);
	return held;
}

// How much memory of a device outlives its makers, among the processes of a file.
static uint64_t outliving(const char *of, int device)
{
	const char *name = of + strlen(location.folder.path) + 1;
	char path[512];
	uint64_t held = 0;
	DIR *listing = opendir(location.folder.path);
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		int whose = -1;
		unsigned long long size = 0;
		if (strncmp(entry->d_name, name, strlen(name)) || !ends_in(entry->d_name, OUTLIVES) ||
		    sscanf(entry->d_name + strlen(name), ".%d.%llu.", &whose, &size) != 2 || whose != device)
			continue;
		snprintf(path, sizeof path, "%s/%s", location.folder.path, entry->d_name);
		held += is_held(path) ? size : 0;
	}
	if (listing)
		closedir(listing);
	return held;
}

int budget_outlive(int device, uint64_t size)
{
	static unsigned made;
	char path[sizeof file + 80];
	if (!segment && sim.settings.uncounted) {
		int alone = memfd_create("cudasim-memory", MFD_CLOEXEC);
		if (alone >= 0)
			budget_give(device, size);
		return alone;
	}
	if (!segment)
		return -1;
	snprintf(path, sizeof path, "%s.%d.%llu.%d-%u" OUTLIVES, file, own->places[device], (unsigned long long)size, getpid(),
		 made++);
	unlink(path); // of an earlier process of this number
	int fd;
	for (struct stat status = {0}; !status.st_nlink;) { // before it is locked, others remove it
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd < 0)
			return -1;
		bool locked = lock(fd, LOCK_SH) && !fstat(fd, &status);
		if (!locked || !status.st_nlink)
			close(fd);
		if (!locked)
			return -1;
	}
	budget_give(device, size); // now the file counts
	return fd;
}

// Removes the files that killed processes left.
static void sweep(void)
{
	DIR *listing = opendir(location.folder.path);
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		char path[sizeof location.folder.path + sizeof entry->d_name];
		snprintf(path, sizeof path, "%s/%s", location.folder.path, entry->d_name);
		if (ends_in(entry->d_name, OUTLIVES))
			is_held(path);
		if (!ends_in(entry->d_name, location.suffix) || !strcmp(path, file))
			continue;
		int fd;
		struct segment *other = attach(path, false, &fd);
		if (other)
			detach(other, fd, path);
	}
	if (listing)
		closedir(listing);
}

// Returns false if the folder cannot be used: errno says why. Threads of a command that restores several processes call
// it at once, so what is known is not written again.
static bool find_location(void)
{
	static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
	struct location found = {0};
	struct stat namespace;
	if (stat("/proc/self/ns/pid", &namespace))
		return false;
	bool usable = folder_find(&found.folder);
	int error = errno;
	snprintf(found.suffix, sizeof found.suffix, ".%lu.%zu", (unsigned long)namespace.st_ino, sizeof *segment);
	pthread_mutex_lock(&finding);
	if (memcmp(&found, &location, sizeof found))
		location = found;
	pthread_mutex_unlock(&finding);
	errno = error;
	return usable;
}

// Takes a place in the segment, which is locked.
static CUresult join(void)
{
	if (!drop_dead(segment, descriptor))
		segment->memory = sim.settings.memory;
	if (segment->memory != sim.settings.memory && getenv("CUDASIM_MEMORY"))
		sim_complain("devices have %llu MiB, not %llu MiB, as the first process of CUDASIM_SHARED=%s wanted; "
			     "another CUDASIM_SHARED has devices of its own",
			     (unsigned long long)segment->memory >> 20,
			     (unsigned long long)sim.settings.memory >> 20, sim.settings.shared);
	for (int i = 0; i < MEMBERS && !own; i++)
		if (!segment->members[i].process && place_is_free(descriptor, F_OFD_SETLK, i))
			own = &segment->members[i];
	if (!own) {
		sim_complain("%d processes share %s already; cuInit returns 304", MEMBERS, sim.settings.shared);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	memset(own->used, 0, sizeof own->used);
	for (int i = 0; i < MAX_DEVICES; i++)
		own->places[i] = sim.settings.places[i];
	own->lent = false;
	__atomic_store_n(&own->process, getpid(), __ATOMIC_RELEASE);
	for (int i = 0; i < MAX_DEVICES; i++)
		memory.devices[i].total = segment->memory;
	return CUDA_SUCCESS;
}

CUresult budget_join(void)
{
	if (!*sim.settings.shared || segment)
		return CUDA_SUCCESS;
	bool found = find_location();
	snprintf(file, sizeof file, "%s/%s%s", location.folder.path, sim.settings.shared, found ? location.suffix : "");
	if (!found || !(segment = attach(file, true, &descriptor))) {
		sim_complain("CUDASIM_SHARED: %s can't be used: %s; cuInit returns 304", file, strerror(errno));
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	CUresult result = join();
	if (result != CUDA_SUCCESS) {
		detach(segment, descriptor, file);
		segment = NULL;
		return result;
	}
	lock(descriptor, LOCK_UN);
	sweep();
	return CUDA_SUCCESS;
}

void budget_leave(void)
{
	if (!segment || !lock(descriptor, LOCK_EX))
		return;
	own->process = 0;
	detach(segment, descriptor, file);
	segment = NULL;
	own = NULL;
}

void budget_forget(void)
{
	if (segment) {
		munmap(segment, sizeof *segment); // the parent's
		close(descriptor);
	}
	segment = NULL;
	own = NULL;
}

__attribute__((destructor)) static void leave(void)
{
	if (pthread_mutex_trylock(&sim.lock)) // a thread ended the process in the middle of a call: the next process sweeps
		return;
	budget_leave();
	pthread_mutex_unlock(&sim.lock);
}

static uint64_t held(const struct segment *of, int place)
{
	uint64_t used = 0;
	for (int i = 0; i < MEMBERS; i++)
		for (int device = 0; device < MAX_DEVICES; device++)
			if (of->members[i].process && !of->members[i].lent && of->members[i].places[device] == place)
				used += of->members[i].used[device];
	return used;
}

static uint64_t available(int device)
{
	uint64_t total = memory.devices[device].total, used = memory.devices[device].used;
	if (segment)
		used = held(segment, own->places[device]) + outliving(file, own->places[device]);
	return used < total ? total - used : 0;
}

bool budget_take(int device, uint64_t size)
{
	if (segment && !lock(descriptor, LOCK_EX))
		return false;
	bool fits = size <= available(device);
	if (!fits && segment) {
		drop_dead(segment, descriptor);
		fits = size <= available(device);
	}
	if (fits) {
		memory.devices[device].used += size;
		process_holds(device, memory.devices[device].used);
		if (segment)
			own->used[device] += size;
	}
	if (segment)
		lock(descriptor, LOCK_UN);
	return fits;
}

void budget_give(int device, uint64_t size)
{
	memory.devices[device].used -= size;
	process_holds(device, memory.devices[device].used);
	if (segment && lock(descriptor, LOCK_EX)) {
		own->used[device] -= size;
		lock(descriptor, LOCK_UN);
	}
}

uint64_t budget_free(int device)
{
	if (segment && !lock(descriptor, LOCK_EX))
		return 0;
	if (segment)
		drop_dead(segment, descriptor);
	uint64_t result = available(device);
	if (segment)
		lock(descriptor, LOCK_UN);
	return result;
}

// Another process's segment may be a different one.
CUresult budget_lend(int process, const char *shared, const int *places)
{
	char path[sizeof file];
	CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
	if (!*shared)
		return CUDA_SUCCESS; // it has its devices for itself
	if (!find_location())
		return result;
	snprintf(path, sizeof path, "%s/%s%s", location.folder.path, shared, location.suffix);
	int fd;
	struct segment *of = attach(path, true, &fd);
	if (!of)
		return result;
	drop_dead(of, fd);
	for (int i = 0; i < MEMBERS; i++) {
		struct member *member = &of->members[i];
		if (member->process != process)
			continue;
		result = CUDA_SUCCESS;
		for (int device = 0; places && member->lent && device < MAX_DEVICES; device++)
			if (held(of, places[device]) + outliving(path, places[device]) + member->used[device] > of->memory)
				result = CUDA_ERROR_OUT_OF_MEMORY;
		if (result == CUDA_SUCCESS && places)
			memcpy(member->places, places, sizeof member->places);
		if (result == CUDA_SUCCESS)
			member->lent = !places;
	}
	detach(of, fd, path);
	return result;
}
