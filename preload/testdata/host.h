/* host is what the host programs of the tests share: declarations and checks. */
#ifndef HOST_H
#define HOST_H

#define _GNU_SOURCE
#include "../tms.h"

/* They come from the preloaded library; the program itself is not linked with it. */
#pragma weak set_memory_margin_bytes
#pragma weak tms_get_backup
#pragma weak tms_get_cpu_backup_backend
#pragma weak tms_get_cpu_backup_pointer
#pragma weak tms_get_current_tag
#pragma weak tms_get_enable_cpu_backup
#pragma weak tms_get_enable_disk_backup
#pragma weak tms_get_enable_incremental_backup
#pragma weak tms_get_enable_peer_backup
#pragma weak tms_set_enable_incremental_backup
#pragma weak tms_set_enable_peer_backup
#pragma weak tms_set_progress_callback
#pragma weak tms_get_excluded
#pragma weak tms_set_excluded
#pragma weak tms_get_interesting_region
#pragma weak tms_get_retain_cpu_backup
#pragma weak tms_last_bytes
#pragma weak tms_last_error
#pragma weak tms_pause
#pragma weak tms_pause_everything
#pragma weak tms_pause_gated
#pragma weak tms_pause_tags
#pragma weak tms_pause_within
#pragma weak tms_discard
#pragma weak tms_prepare
#pragma weak tms_trim
#pragma weak tms_resume
#pragma weak tms_resume_tags
#pragma weak tms_resume_within
#pragma weak tms_serve
#pragma weak tms_set_backup
#pragma weak tms_set_cpu_backup_backend
#pragma weak tms_set_current_tag
#pragma weak tms_set_disk_backup_dir
#pragma weak tms_set_enable_cpu_backup
#pragma weak tms_set_enable_disk_backup
#pragma weak tms_set_interesting_region
#pragma weak tms_set_retain_cpu_backup
#pragma weak tms_stats_json
#pragma weak tms_torch_free
#pragma weak tms_torch_malloc
#pragma weak tms_pool_create
#pragma weak tms_pool_destroy
#pragma weak tms_pool_free
#pragma weak tms_pool_malloc
#pragma weak tms_pool_record_stream
#pragma weak tms_pool_reset_accumulated_stats
#pragma weak tms_pool_reset_peak_stats
#pragma weak tms_pool_snapshot_json
#pragma weak tms_pool_stats_json
#pragma weak tms_pool_trim
#pragma weak tms_torch_pool_begin_allocate_to_pool
#pragma weak tms_torch_pool_end_allocate_to_pool
#pragma weak tms_torch_pool_free
#pragma weak tms_torch_pool_init
#pragma weak tms_torch_pool_malloc
#pragma weak tms_torch_pool_malloc_or_throw
#pragma weak tms_torch_pool_memory_fraction
#pragma weak tms_torch_pool_record_stream
#pragma weak tms_torch_pool_release_pool
#pragma weak tms_torch_pool_reset
#pragma weak tms_torch_pool_stats_json
#pragma weak tms_torch_pool_use
#pragma weak tms_version

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemset(void *, int, size_t);
int cudaMemcpy(void *, const void *, size_t, int); /* 1: to device, 2: to host */
int cudaMemGetInfo(size_t *, size_t *);
int cudaSetDevice(int);
int cudaGetDevice(int *);
int cudaDeviceSynchronize(void);
int cudaStreamCreate(void **);
int cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **);
int cudaMemsetAsync(void *, int, size_t, void *);
int cudaStreamSynchronize(void *);
int cuCtxGetCurrent(void **);

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__,        \
				__LINE__, #condition, tms_last_error());                           \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

#define EXPECT(expression, expected)                                                               \
	do {                                                                                       \
		long long got_ = (long long)(expression), want_ = (long long)(expected);           \
		if (got_ != want_) {                                                               \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld (last error: %s)\n",          \
				__FILE__, __LINE__, #expression, got_, want_, tms_last_error());   \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* A kernel that adds a number to a given count of words in one thread; the simulator knows it by its name. */
#define ADD_KERNEL                                                                                 \
	".version 6.0\n.target sm_70\n.address_size 64\n"                                          \
	".visible .entry cudasim_add(.param .u64 words, .param .u64 count, .param .u32 number)\n"  \
	"{\n"                                                                                      \
	"	.reg .pred %p<2>;\n	.reg .b32 %r<3>;\n	.reg .b64 %d<3>;\n"                         \
	"	ld.param.u64 %d1, [words];\n	ld.param.u64 %d2, [count];\n"                       \
	"	ld.param.u32 %r1, [number];\n	cvta.to.global.u64 %d1, %d1;\n"                      \
	"more:	setp.eq.u64 %p1, %d2, 0;\n	@%p1 bra done;\n"                                    \
	"	ld.global.u32 %r2, [%d1];\n	add.u32 %r2, %r2, %r1;\n	st.global.u32 [%d1], %r2;\n" \
	"	add.u64 %d1, %d1, 4;\n	sub.u64 %d2, %d2, 1;\n	bra more;\n"                        \
	"done:	ret;\n"                                                                            \
	"}\n"

/* Returns a function of the simulator's own, from the libcuda that libtms or libcudart loaded. */
static inline void *simulator(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void *found = library ? dlsym(library, name) : NULL;
	CHECK(found);
	return found;
}

static inline uint64_t sim_stat(const char *name)
{
	return ((uint64_t(*)(const char *))simulator("cudasim_stat"))(name);
}

static inline void sim_fail(const char *function, int nth, int code)
{
	((void (*)(const char *, int, int))simulator("cudasim_fail"))(function, nth, code);
}

static inline size_t free_bytes(void)
{
	size_t unused = 0, total = 0;
	EXPECT(cudaMemGetInfo(&unused, &total), 0);
	return unused;
}

static inline void *pausable(size_t size, const char *tag, bool backup)
{
	void *pointer = NULL;
	tms_set_interesting_region(true);
	tms_set_current_tag(tag);
	tms_set_enable_cpu_backup(backup);
	EXPECT(cudaMalloc(&pointer, size), 0);
	tms_set_interesting_region(false);
	tms_set_enable_cpu_backup(false);
	tms_set_current_tag(NULL);
	CHECK(pointer);
	return pointer;
}

static inline int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	int count = 0;
	for (struct dirent *entry; (entry = readdir(tasks));)
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

static inline int descriptors(void)
{
	DIR *open = opendir("/proc/self/fd");
	CHECK(open);
	int count = 0;
	while (readdir(open))
		count++;
	closedir(open);
	return count;
}

/* How often to repeat something: in the soak, and otherwise. */
static inline int often(int soak, int usual)
{
	return getenv("OFTEN") ? soak : usual;
}

struct random {
	uint64_t state;
};

/* xorshift64* (Vigna, 2016). */
static inline unsigned draw(struct random *r, unsigned below)
{
	r->state ^= r->state >> 12;
	r->state ^= r->state << 25;
	r->state ^= r->state >> 27;
	return (unsigned)((r->state * 2685821657736338717u) >> 33) % below;
}

/* Fills device memory with a pattern of its own; filled reports whether it is still there. */
static inline void fill(void *device, size_t size, unsigned seed)
{
	unsigned *words = malloc(size);
	CHECK(words);
	for (size_t i = 0; i < size / 4; i++)
		words[i] = (unsigned)(i * 2654435761u) ^ seed;
	EXPECT(cudaMemcpy(device, words, size, 1), 0);
	free(words);
}

static inline bool filled(void *device, size_t size, unsigned seed)
{
	unsigned *words = malloc(size);
	CHECK(words);
	EXPECT(cudaMemcpy(words, device, size, 2), 0);
	bool same = true;
	for (size_t i = 0; i < size / 4 && same; i++)
		same = words[i] == ((unsigned)(i * 2654435761u) ^ seed);
	free(words);
	return same;
}

#endif
