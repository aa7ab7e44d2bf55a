/* trace records: with TMS_TRACE=FILE every allocation and free of the process goes to FILE, in the format that
 * internal/trace documents and reads, %p in FILE being the process's number. What is an allocation is left to those
 * who make them. It is C, and asleep Go stays asleep, so that any program can be recorded.
 *
 * The file is made at the first allocation: most processes that inherit the variable make none. It is
 * locked, so a second process that is given the same file does not write over the first. Lines are
 * buffered, and written out by the first of each second and at exit: who is killed loses the last.
 *
 * The host may close the descriptor, and open a file of its own that gets the number: which file it is of is
 * asked before each write, and a trace whose descriptor is gone ends.
 *
 * A forked child writes a file of its own where the name has %p in it, and else nothing. */
#define _GNU_SOURCE
#include "shim.h"
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_SIZE = 64 << 10, LINE_SIZE = 160 };

static const char *pattern; /* TMS_TRACE; NULL: nothing is recorded */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_mark process; /* whose trace is open; a child that no handler prepared records nothing */

/* All below is guarded by lock. */
static enum { UNOPENED, OPEN, STOPPED } state;
static struct descriptor file = {-1, 0, 0};
static char *buffer;
static size_t filled;
static bool unbuffered; /* the process is exiting */
static time_t written;
static long utc_offset; /* seconds, as at the start */

static struct table live;

static void close_file(void)
{
	if (descriptor_is_still(file))
		close(file.number);
	file.number = -1;
}

static void stop(const char *what, const char *why)
{
	char message[512];
	snprintf(message, sizeof message, "TMS_TRACE=%.300s: %s: %s; no more is recorded", pattern, what, why);
	error_log(message);
	close_file();
	state = STOPPED;
}

static void flush(void)
{
	size_t done = 0;
	while (state == OPEN && done < filled) {
		if (!descriptor_is_still(file)) {
			stop("cannot be written", "the program has closed its descriptor");
			break;
		}
		ssize_t count = descriptor_write(file.number, buffer + done, filled - done);
		if (count >= 0)
			done += (size_t)count;
		else if (errno != EINTR)
			stop("cannot be written", strerror(errno));
	}
	filled = 0;
}

/* The pattern with the process's number for each %p. false: too long. */
static bool file_name(char *name, size_t size)
{
	size_t length = 0;
	for (const char *p = pattern; *p && length < size; p++) {
		if (p[0] == '%' && p[1] == 'p') {
			length += (size_t)snprintf(name + length, size - length, "%d", (int)getpid());
			p++;
		} else {
			name[length++] = *p;
		}
	}
	if (length >= size)
		return false;
	name[length] = 0;
	return true;
}

static void open_file(void)
{
	char name[4096];
	if (!file_name(name, sizeof name)) {
		stop("cannot be made", strerror(ENAMETOOLONG));
		return;
	}
	int number = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (number >= 0 && number <= STDERR_FILENO) { /* which the host has closed, and still writes to */
		int above = fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		close(number);
		number = above;
	}
	file = descriptor_of(number);
	if (file.number < 0) {
		stop("cannot be made", strerror(errno));
		return;
	}
	/* A pipe or /dev/stderr cannot be locked or truncated, and need not be. */
	if (flock(number, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		stop("another process records to it; a %p in the name gives each its own", strerror(errno));
		return;
	}
	if (ftruncate(number, 0) != 0)
		errno = 0;
	buffer = malloc(BUFFER_SIZE);
	if (!buffer) {
		stop("there is no host memory", strerror(ENOMEM));
		return;
	}
	fork_mark_set(&process);
	time_t now = time(NULL);
	struct tm local;
	utc_offset = localtime_r(&now, &local) ? local.tm_gmtoff : 0;
	written = now;
	state = OPEN;
	filled = (size_t)snprintf(buffer, BUFFER_SIZE, "Thread,Time,Action,Pointer,Size,Stream\n");
}

static void print(const char *action, struct block block)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	long second = (long)((now.tv_sec + utc_offset) % (24 * 60 * 60));
	if (BUFFER_SIZE - filled < LINE_SIZE)
		flush();
	filled += (size_t)snprintf(buffer + filled, LINE_SIZE, "%ld,%02ld:%02ld:%02ld.%06ld,%s,0x%lx,%zu,0x%lx\n",
				   syscall(SYS_gettid), second / 3600, second / 60 % 60, second % 60,
				   now.tv_nsec / 1000, action, (unsigned long)block.address, block.size,
				   (unsigned long)block.stream);
	if (unbuffered || now.tv_sec != written) {
		flush();
		written = now.tv_sec;
	}
}

/* Whether there is a trace to write to; lock is then held. */
static bool begin(void)
{
	if (likely(!pattern) || fork_happened(&process))
		return false;
	pthread_mutex_lock(&lock);
	if (state == UNOPENED)
		open_file();
	if (state == OPEN)
		return true;
	pthread_mutex_unlock(&lock);
	return false;
}

static void made(struct block block)
{
	struct block *before = table_find(&live, block.address);
	if (before) /* freed where we do not look: by a reset of the device, say */
		print("free", *before);
	if (!table_put(&live, block)) {
		stop("there is no host memory", strerror(ENOMEM));
		return;
	}
	print("allocate", block);
}

HIDDEN void trace_pool_malloc(int code, const void *address, size_t size, const void *stream, const void *pool)
{
	if (!begin())
		return;
	if (code != SUCCESS)
		print("allocate failure", (struct block){.size = size, .stream = stream});
	else if (address)
		made((struct block){.address = address, .size = size, .stream = stream, .pool = pool});
	pthread_mutex_unlock(&lock);
}

HIDDEN void trace_malloc(int code, const void *address, size_t size, const void *stream)
{
	trace_pool_malloc(code, address, size, stream, NULL);
}

HIDDEN struct block trace_free(const void *address, const void *stream)
{
	struct block block = {0};
	if (!address || !begin())
		return block;
	block = table_take(&live, address);
	if (block.address) {
		struct block line = block;
		if (stream != TRACE_SAME_STREAM)
			line.stream = stream;
		print("free", line);
	}
	pthread_mutex_unlock(&lock);
	return block;
}

HIDDEN void trace_unfree(struct block block)
{
	if (!block.address || !begin())
		return;
	made(block);
	pthread_mutex_unlock(&lock);
}

static int by_address(const void *x, const void *y)
{
	uintptr_t a = (uintptr_t)((const struct block *)x)->address;
	uintptr_t b = (uintptr_t)((const struct block *)y)->address;
	return (a > b) - (a < b);
}

HIDDEN void trace_pool_destroyed(const void *pool)
{
	if (!begin())
		return;
	struct block *ended = live.live ? malloc(live.live * sizeof *ended) : NULL;
	size_t count = 0;
	for (size_t i = 0; ended && i < live.slot_count; i++)
		if (live.slots[i].address && live.slots[i].pool == pool)
			ended[count++] = live.slots[i];
	if (live.live && !ended)
		stop("there is no host memory", strerror(ENOMEM));
	else if (count > 0)
		qsort(ended, count, sizeof *ended, by_address);
	for (size_t i = 0; i < count; i++) {
		table_take(&live, ended[i].address);
		print("free", ended[i]);
	}
	free(ended);
	pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/* What the parent has made is no block of the child's. */
static void after_fork_in_child(void)
{
	filled = 0;
	close_file();
	free(buffer);
	buffer = NULL;
	table_clear(&live);
	if (state == OPEN)
		state = strstr(pattern, "%p") ? UNOPENED : STOPPED;
	fork_mark_set(&process);
	pthread_mutex_unlock(&lock);
}

AT_LOAD HIDDEN void trace_load(void)
{
	pattern = getenv("TMS_TRACE");
	if (pattern && !*pattern)
		pattern = NULL;
	if (!pattern)
		return;
	pattern = region_intern(pattern); /* the environment is the host's to change */
	if (!pattern)
		return;
	alloc_watched = true;
	fork_notify(before_fork, after_fork_in_parent, after_fork_in_child);
}

__attribute__((destructor)) static void at_exit(void)
{
	if (!pattern || fork_happened(&process))
		return;
	pthread_mutex_lock(&lock);
	unbuffered = true; /* what comes now is from destructors after ours */
	if (state == OPEN)
		flush();
	pthread_mutex_unlock(&lock);
}
