// Contents in files beside plain reads and writes of as many bytes on the same disk: run preloaded with libtms.so.
//   disk DIRECTORY BYTES SECONDS THREADSxKIB...   each THREADSxKIB is a way to do it by hand: that many threads, with
//                                                 requests of KIB; "+" before it: each is copied from or to a device
// Prints a step a line: how it was done, what was done, and seconds. All steps repeat until SECONDS are over. "new"
// writes to new files whose space is reserved, "again" overwrites them. Before each step the disk has written all that
// it was given, so that no step pays for the one before it. Random contents: a disk may know zeros.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../preload/tms.h"

extern int cuInit(unsigned flags);
extern int cuDeviceGet(int *device, int ordinal);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(uint64_t *address, size_t size);
extern int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size);
extern int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size);
extern int cuMemFree_v2(uint64_t address);
extern int cuMemHostAlloc(void **memory, size_t size, unsigned flags);
extern int cuMemFreeHost(void *memory);
extern int cuStreamCreate(void **stream, unsigned flags);
extern int cuStreamSynchronize(void *stream);
extern int cuStreamDestroy_v2(void *stream);
extern int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream);
extern int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream);

enum { MIB = 1 << 20, SEGMENT = 64 * MIB, FILES = 8, MOST_THREADS = 64 };

static const char *directory;
static size_t bytes;
static char *contents; // of one segment; another segment has them from another offset on

static void check(bool good, const char *what)
{
	if (!good) {
		const char *why = tms_last_error();
		fprintf(stderr, "disk: %s: %s\n", what, why && *why ? why : strerror(errno));
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// settle waits for the disk, and drops the page cache where this process may.
static void settle(void)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY);
	check(fd >= 0 && syncfs(fd) == 0, directory);
	close(fd);
	if ((fd = open("/proc/sys/vm/drop_caches", O_WRONLY)) >= 0) {
		if (write(fd, "1", 1) < 0)
			errno = 0;
		close(fd);
	}
}

// The plain way: threads take the next block of the next file.
static struct {
	int files[FILES];
	size_t block;
	int threads;
	bool writes, copies;
	char *buffers[MOST_THREADS];
	uint64_t device; // memory
	atomic_size_t next;
} plain;
static void *context;

static void *transfer(void *buffer)
{
	void *stream = NULL;
	if (plain.copies)
		check(cuCtxSetCurrent(context) == 0 && cuStreamCreate(&stream, 1) == 0, "a stream");
	for (;;) {
		size_t i = atomic_fetch_add(&plain.next, 1);
		if (i >= bytes / plain.block)
			break;
		int fd = plain.files[i % FILES];
		off_t offset = (off_t)(i / FILES * plain.block);
		uint64_t there = plain.device + i * plain.block;
		if (plain.copies && plain.writes)
			check(cuMemcpyDtoHAsync_v2(buffer, there, plain.block, stream) == 0 && cuStreamSynchronize(stream) == 0, "a copy");
		ssize_t done = plain.writes ? pwrite(fd, buffer, plain.block, offset) : pread(fd, buffer, plain.block, offset);
		check(done == (ssize_t)plain.block, plain.writes ? "writing" : "reading");
		if (plain.copies && !plain.writes)
			check(cuMemcpyHtoDAsync_v2(there, buffer, plain.block, stream) == 0 && cuStreamSynchronize(stream) == 0, "a copy");
	}
	if (stream)
		cuStreamDestroy_v2(stream);
	return NULL;
}

static double transfer_all(bool writes)
{
	pthread_t threads[MOST_THREADS];
	plain.writes = writes;
	plain.next = 0;
	settle();
	double begun = now();
	for (int i = 0; i < plain.threads; i++)
		check(pthread_create(&threads[i], NULL, transfer, plain.buffers[i]) == 0, "pthread_create");
	for (int i = 0; i < plain.threads; i++)
		pthread_join(threads[i], NULL);
	return now() - begun;
}

// fresh makes device memory, or makes it again: a resume, too, reads into memory that was not there before.
static void fresh(void)
{
	if (plain.device)
		check(cuMemFree_v2(plain.device) == 0, "cuMemFree");
	plain.device = 0;
	if (plain.copies)
		check(cuMemAlloc_v2(&plain.device, bytes) == 0, "device memory for copies by hand");
}

static void fill_device(void)
{
	for (size_t at = 0; plain.device && at < bytes; at += SEGMENT)
		check(cuMemcpyHtoD_v2(plain.device + at, contents, SEGMENT) == 0, "device memory");
}

static int open_unnamed(void)
{
	int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
	if (fd < 0 && errno == EOPNOTSUPP) {
		char path[4096];
		snprintf(path, sizeof path, "%s/tms-bench-disk-%d", directory, getpid());
		fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_DIRECT, 0600);
		unlink(path);
	}
	check(fd >= 0, "a file for O_DIRECT");
	return fd;
}

static void by_hand(const char *name)
{
	size_t kib;
	plain.copies = *name == '+';
	check(sscanf(name + plain.copies, "%dx%zu", &plain.threads, &kib) == 2 && plain.threads <= MOST_THREADS &&
		      kib * 1024 <= SEGMENT,
	      name);
	plain.block = kib * 1024;
	void *buffers;
	check(cuMemHostAlloc(&buffers, plain.block * (size_t)plain.threads, 0) == 0, "pinned memory");
	for (int i = 0; i < plain.threads; i++) {
		plain.buffers[i] = (char *)buffers + (size_t)i * plain.block;
		memcpy(plain.buffers[i], contents + i * 4096, plain.block);
	}
	fresh();
	fill_device();
	settle();
	double begun = now();
	for (int i = 0; i < FILES; i++) {
		plain.files[i] = open_unnamed();
		check(fallocate(plain.files[i], 0, 0, (off_t)(bytes / FILES + plain.block)) == 0 || errno == EOPNOTSUPP, "fallocate");
	}
	double reserved = now() - begun;
	printf("%s new %.6f\n", name, reserved + transfer_all(true));
	fresh();
	printf("%s read %.6f\n", name, transfer_all(false));
	printf("%s again %.6f\n", name, transfer_all(true));
	fresh();
	printf("%s read %.6f\n", name, transfer_all(false));
	plain.copies = false;
	fresh();
	for (int i = 0; i < FILES; i++)
		close(plain.files[i]);
	check(cuMemFreeHost(buffers) == 0, "cuMemFreeHost");
}

static void step(const char *what, int (*call)(const char *))
{
	settle();
	double begun = now();
	check(call(NULL) == 0, what);
	printf("tms %s %.6f\n", what, now() - begun);
}

static void tms_round(void)
{
	step("new", tms_pause);
	step("read", tms_resume);
	step("again", tms_pause);
	step("read", tms_resume);
	check(tms_trim() == 0, "tms_trim"); // the next round has new files
}

int main(int count, char **arguments)
{
	check(count > 4, "DIRECTORY BYTES SECONDS THREADSxKIB...");
	directory = arguments[1];
	bytes = strtoull(arguments[2], NULL, 10) / SEGMENT * SEGMENT;
	double end = now() + strtod(arguments[3], NULL);

	int device;
	check(cuInit(0) == 0 && cuDeviceGet(&device, 0) == 0 && cuDevicePrimaryCtxRetain(&context, device) == 0 &&
		      cuCtxSetCurrent(context) == 0,
	      "a CUDA context");
	size_t offsets = bytes / SEGMENT;
	contents = malloc(SEGMENT + MOST_THREADS * 4096 + offsets * 8);
	char *back = malloc(SEGMENT);
	uint64_t random = 1, *segments = calloc(offsets, sizeof *segments);
	check(contents && back && segments, "memory");
	for (size_t i = 0; i < SEGMENT + MOST_THREADS * 4096 + offsets * 8; i += 8) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		memcpy(contents + i, &random, 8);
	}
	tms_set_disk_backup_dir(directory);
	tms_set_retain_cpu_backup(true);
	tms_set_interesting_region(true);
	check(tms_set_backup("disk") == 0, "tms_set_backup");
	for (size_t i = 0; i < offsets; i++)
		check(cuMemAlloc_v2(&segments[i], SEGMENT) == 0 && cuMemcpyHtoD_v2(segments[i], contents + i * 8, SEGMENT) == 0,
		      "device memory");
	tms_set_interesting_region(false);
	// In another order each time: a disk of a cloud may be faster after a rest.
	for (int round = 0; round == 0 || now() < end; round++)
		for (int i = 0, ways = count - 3; i < ways; i++) {
			int way = round % 2 ? (round + ways - i) % ways : (round + i) % ways;
			if (way == 0)
				tms_round();
			else
				by_hand(arguments[way + 3]);
			fflush(stdout);
		}
	for (size_t i = 0; i < offsets; i++)
		check(cuMemcpyDtoH_v2(back, segments[i], SEGMENT) == 0 && memcmp(back, contents + i * 8, SEGMENT) == 0,
		      "the contents as they were");
	return 0;
}
