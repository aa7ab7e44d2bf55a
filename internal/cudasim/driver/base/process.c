// The page of process.h: how it is made, how another process's is found, and the lock on this process's calls.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/process.h"

#define MEMFD "cudasim-process"

static struct process_page *own; // NULL: calls never wait
static const volatile char *taken; // a page without read access

// Returns when the word is woken, when it is not the value, or after 20 ms: nothing reports that the process that would
// change it has died.
static void wait_on(_Atomic uint32_t *word, uint32_t value)
{
	struct timespec most = {.tv_nsec = 20000000};
	syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}

static void wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static struct process_page *page_new(void)
{
	int fd = memfd_create(MEMFD, MFD_CLOEXEC);
	if (fd < 0)
		return NULL;
	struct process_page *page = MAP_FAILED;
	struct stat status;
	if (!ftruncate(fd, sizeof *page) && !fstat(fd, &status) && !flock(fd, LOCK_EX)) // for processes_next
		page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	taken = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED || taken == MAP_FAILED) {
		close(fd);
		return NULL;
	}
	page->file = status.st_ino;
	page->process = getpid(); // the descriptor stays open: others find the page by it
	memcpy(page->shared, sim.settings.shared, sizeof page->shared);
	return page;
}

bool process_publish(uint64_t memory)
{
	if (!own)
		own = page_new();
	if (!own)
		return false;
	own->devices = sim.settings.machine_count;
	for (int i = 0; i < MAX_DEVICES && !atomic_load(&own->initialized); i++)
		atomic_store(&own->places[i], sim.settings.places[i]);
	own->memory = memory;
	atomic_store(&own->initialized, 1);
	return true;
}

void process_withdraw(void)
{
	if (!own)
		return;
	atomic_store(&own->initialized, 0);
	atomic_store(&own->shares, 0);
	atomic_store(&own->lost, 0);
	memcpy(own->shared, sim.settings.shared, sizeof own->shared);
}

void process_forget(void)
{
	if (own)
		munmap(own, sizeof *own); // the parent's
	own = NULL;
}

void process_shares(int more)
{
	if (own)
		atomic_fetch_add(&own->shares, (uint32_t)more);
}

void process_holds(int device, uint64_t bytes)
{
	if (own)
		atomic_store(&own->held[device], bytes);
}

int process_place(int device)
{
	return own ? atomic_load(&own->places[device]) : sim.settings.places[device];
}

// Returns the state, after the deadline or the locking process's death has ended a lock that was being taken.
static uint32_t settled(struct process_page *page)
{
	uint32_t state = atomic_load(&page->state);
	if (state != LOCKING)
		return state;
	uint64_t deadline = atomic_load(&page->deadline);
	if (!atomic_load(&page->inside))
		process_move(page, LOCKING, CU_PROCESS_STATE_LOCKED);
	else if (deadline && nanoseconds() >= deadline)
		process_move(page, LOCKING, CU_PROCESS_STATE_RUNNING);
	return atomic_load(&page->state);
}

CUprocessState process_pass(bool *inside)
{
	struct process_page *page = own;
	*inside = false;
	if (!page)
		return CU_PROCESS_STATE_RUNNING;
	atomic_fetch_add(&page->inside, 1);
	uint32_t state = atomic_load(&page->state);
	*inside = state == CU_PROCESS_STATE_RUNNING;
	if (!*inside)
		process_leave();
	return state == LOCKING ? CU_PROCESS_STATE_LOCKED : (CUprocessState)state;
}

bool process_enter(bool *inside)
{
	for (;;) {
		CUprocessState state = process_pass(inside);
		if (state == CU_PROCESS_STATE_RUNNING)
			return true;
		if (state == CU_PROCESS_STATE_FAILED)
			return false;
		wait_on(&own->state, settled(own));
	}
}

void process_read_taken(void)
{
	(void)*taken;
}

void process_leave(void)
{
	struct process_page *page = own;
	if (page && atomic_fetch_sub(&page->inside, 1) == 1 && atomic_load(&page->state) != CU_PROCESS_STATE_RUNNING)
		wake(&page->inside);
}

// Returns the number that a process has in its own PID namespace, which may be below this one.
static int number_within(int process)
{
	char path[32], line[256];
	snprintf(path, sizeof path, "/proc/%d/status", process);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, "NSpid:", 6)) {
			process = atoi(strrchr(line, '\t') + 1);
			break;
		}
	if (file)
		fclose(file);
	return process;
}

static struct process_page *page_of(int process, const char *descriptor)
{
	char path[PATH_MAX], target[64] = "";
	snprintf(path, sizeof path, "/proc/%d/fd/%s", process, descriptor);
	if (readlink(path, target, sizeof target - 1) < 0 || !strstr(target, MEMFD))
		return NULL;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	struct process_page *page = NULL;
	if (lseek(fd, 0, SEEK_END) == sizeof *page) {
		page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		page = page == MAP_FAILED ? NULL : page;
	}
	close(fd);
	// A child inherits its parent's descriptors.
	if (page && page->process != number_within(process)) {
		process_release(page);
		page = NULL;
	}
	return page;
}

// Reports whether a process has ended and its parent has not waited for it. Only root may list its descriptors, of which
// there are none.
static bool has_ended(int process)
{
	char path[32], state = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", process);
	FILE *file = fopen(path, "re");
	bool read = file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
	if (file)
		fclose(file);
	return read && (state == 'Z' || state == 'X');
}

CUresult process_find(int process, struct process_page **page)
{
	char path[32];
	*page = NULL;
	if (process <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(path, sizeof path, "/proc/%d/fd", process);
	DIR *listing = opendir(path);
	if (!listing && errno == EACCES && has_ended(process))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!listing)
		return errno == EACCES || errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
	for (struct dirent *entry; !*page && (entry = readdir(listing));)
		*page = page_of(process, entry->d_name);
	closedir(listing);
	if (*page && atomic_load(&(*page)->initialized))
		return CUDA_SUCCESS;
	if (*page)
		process_release(*page);
	return CUDA_ERROR_NOT_INITIALIZED;
}

// Reads /proc/locks, and says in how many parts: the kernel tells at most a page at one time, and the locks may change
// between two parts. Returns false if they are more than the text has room for, or unknown.
static bool read_locks(char *text, size_t size, int *parts)
{
	int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
	size_t length = 0;
	ssize_t more = -1;
	for (*parts = 0; fd >= 0 && length < size - 1 && (more = read(fd, text + length, size - 1 - length)) > 0; ++*parts)
		length += (size_t)more;
	text[length] = 0;
	if (fd >= 0)
		close(fd);
	return more == 0;
}

// Returns the machine's locks as they were at one time: several parts are right if they are the same when they are read
// again. Returns NULL if they are not, a few times.
static char *locks_of_machine(void)
{
	enum { SIZE = 1 << 18, TRIES = 64 };
	char *text = malloc(SIZE), *before = malloc(SIZE);
	bool right = false;
	for (int i = 0, parts; text && before && i < TRIES && !right; i++) {
		char *other = before;
		before = text;
		text = other;
		if (!read_locks(text, SIZE, &parts))
			break;
		right = parts == 1 || (i > 0 && !strcmp(text, before));
	}
	free(before);
	if (!right)
		free(text);
	return right ? text : NULL;
}

void processes_open(struct processes *of)
{
	of->line = of->locks = locks_of_machine();
	of->all = of->locks ? NULL : opendir("/proc");
}

struct process_page *processes_next(struct processes *of)
{
	struct process_page *page;
	for (struct dirent *entry; of->all && (entry = readdir(of->all));)
		if (process_find(of->process = atoi(entry->d_name), &page) == CUDA_SUCCESS)
			return page;
	while (of->line && *of->line) {
		unsigned long long file;
		int process;
		// The pages are in memory, whose files have no disk's number (00).
		int found = sscanf(of->line, "%*u: FLOCK %*s WRITE %d 00:%*x:%llu", &process, &file);
		of->line = strchr(of->line, '\n');
		of->line = of->line ? of->line + 1 : NULL;
		if (found != 2 || process_find(process, &page) != CUDA_SUCCESS)
			continue;
		of->process = process;
		if (page->file == file)
			return page;
		process_release(page); // the process has this lock for something else
	}
	return NULL;
}

void processes_close(struct processes *of)
{
	if (of->all)
		closedir(of->all);
	free(of->locks);
}

void process_release(struct process_page *page)
{
	munmap(page, sizeof *page);
}

CUprocessState process_state(struct process_page *page)
{
	uint32_t state = settled(page);
	return state == LOCKING ? CU_PROCESS_STATE_RUNNING : (CUprocessState)state;
}

bool process_move(struct process_page *page, uint32_t from, uint32_t to)
{
	bool moved = atomic_compare_exchange_strong(&page->state, &from, to);
	if (moved)
		wake(&page->state);
	return moved;
}

CUresult process_lock(struct process_page *page, unsigned timeout_ms)
{
	if (settled(page) != CU_PROCESS_STATE_RUNNING)
		return CUDA_ERROR_ILLEGAL_STATE;
	atomic_store(&page->deadline, timeout_ms ? nanoseconds() + (uint64_t)timeout_ms * 1000000 : 0);
	if (!process_move(page, CU_PROCESS_STATE_RUNNING, LOCKING))
		return CUDA_ERROR_ILLEGAL_STATE; // another caller was first
	for (;;) {
		uint32_t state = settled(page), inside = atomic_load(&page->inside);
		if (state == CU_PROCESS_STATE_LOCKED)
			return CUDA_SUCCESS;
		if (state != LOCKING)
			return CUDA_ERROR_NOT_READY;
		if (inside)
			wait_on(&page->inside, inside);
	}
}
