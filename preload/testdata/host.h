/* host is what the host programs of the tests share: declarations and checks. */
#ifndef HOST_H
#define HOST_H

#define _GNU_SOURCE
#include "../tms.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

struct prop { /* CUmemAllocationProp */
	int type, handle_types, location_type, location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
struct access { /* CUmemAccessDesc */
	int location_type, location, flags;
};
struct multicast { /* CUmulticastObjectProp */
	unsigned devices;
	size_t size;
	unsigned long long handle_types, flags;
};
struct handle { /* cudaIpcMemHandle_t */
	char bytes[64];
};
enum { POSIX_FD = 1 }; /* a kind of handle */
static const struct prop exportable = {.type = 1, .handle_types = POSIX_FD, .location_type = 1};
static const struct access readwrite = {1, 0, 3};

int cudaDeviceReset(void);
int cudaDeviceSynchronize(void);
int cudaEventCreate(void **);
int cudaEventQuery(void *);
int cudaEventRecord(void *, void *);
int cudaFree(void *);
int cudaFreeAsync(void *, void *);
int cudaGetDevice(int *);
int cudaGetDriverEntryPoint(const char *, void **, unsigned long long, int *);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
int cudaGraphDestroy(void *);
int cudaGraphInstantiate(void **, void *, unsigned long long);
int cudaGraphLaunch(void *, void *);
int cudaIpcCloseMemHandle(void *);
int cudaIpcGetMemHandle(struct handle *, void *);
int cudaIpcOpenMemHandle(void **, struct handle, unsigned);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);
int cudaMalloc(void **, size_t);
int cudaMallocAsync(void **, size_t, void *);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMemcpy(void *, const void *, size_t, int); /* 1: to device, 2: to host, 3: between devices */
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaMemset(void *, int, size_t);
int cudaMemsetAsync(void *, int, size_t, void *);
int cudaSetDevice(int);
int cudaStreamBeginCapture(void *, int);
int cudaStreamCreate(void **);
int cudaStreamDestroy(void *);
int cudaStreamEndCapture(void *, void **);
int cudaStreamQuery(void *);
int cudaStreamSynchronize(void *);

int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuCtxGetCurrent(void **);
int cuCtxSetCurrent(void *);
int cuDevicePrimaryCtxRetain(void **, int);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int cuGraphDestroy(void *);
int cuGraphExecDestroy(void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuInit(unsigned);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		   void **);
int cuLibraryGetKernel(void **, void *, const char *);
int cuLibraryLoadData(void **, const void *, void *, void **, unsigned, void *, void **, unsigned);
int cuMemAddressFree(uintptr_t, size_t);
int cuMemAddressReserve(uintptr_t *, size_t, size_t, uintptr_t, unsigned long long);
int cuMemAlloc_v2(uintptr_t *, size_t);
int cuMemCreate(uint64_t *, size_t, const struct prop *, unsigned long long);
int cuMemExportToShareableHandle(void *, uint64_t, int, unsigned long long);
int cuMemFreeAsync(uintptr_t, void *);
int cuMemFree_v2(uintptr_t);
int cuMemGetAddressRange_v2(uintptr_t *, size_t *, uintptr_t);
int cuMemImportFromShareableHandle(uint64_t *, void *, int);
int cuMemMap(uintptr_t, size_t, size_t, uint64_t, unsigned long long);
int cuMemRelease(uint64_t);
int cuMemRetainAllocationHandle(uint64_t *, void *);
int cuMemSetAccess(uintptr_t, size_t, const struct access *, size_t);
int cuMemUnmap(uintptr_t, size_t);
int cuMemcpyDtoH_v2(void *, uintptr_t, size_t);
int cuMemsetD32Async(uintptr_t, unsigned, size_t, void *);
int cuMemsetD32_v2(uintptr_t, unsigned, size_t);
int cuMulticastCreate(uint64_t *, const struct multicast *);
int cuPointerGetAttribute(void *, int, uintptr_t);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamEndCapture(void *, void **);
int cuStreamSynchronize(void *);

/* The preloaded library's functions. The program is not linked with it, and perhaps not with the driver either. */
__asm__(".weak set_memory_margin_bytes, tms_discard, tms_get_backup, tms_get_cpu_backup_backend, "
	"tms_get_cpu_backup_pointer, tms_get_current_tag, tms_get_enable_cpu_backup, tms_get_enable_disk_backup, "
	"tms_get_enable_incremental_backup, tms_get_excluded, "
	"tms_get_interesting_region, tms_get_resume_wait, tms_get_retain_cpu_backup, tms_last_bytes, tms_last_error, "
	"tms_live, tms_order_enter, tms_order_is_over, tms_order_leave, "
	"tms_pause, tms_pause_everything, tms_pause_gated, tms_pause_tags, tms_pause_within, tms_pool_create, "
	"tms_pool_destroy, tms_pool_free, tms_pool_malloc, tms_pool_record_stream, "
	"tms_pool_reset_peak_stats, tms_pool_snapshot_json, tms_pool_stats_json, "
	"tms_pool_trim, tms_prepare, tms_resume, tms_resume_in_order, "
	"tms_resume_tags, tms_resume_within, tms_serve, tms_set_backup, "
	"tms_set_cpu_backup_backend, tms_set_current_tag, tms_set_disk_backup_dir, tms_set_enable_cpu_backup, "
	"tms_set_enable_disk_backup, tms_set_enable_incremental_backup, "
	"tms_set_excluded, tms_set_interesting_region, tms_set_resume_wait, "
	"tms_set_retain_cpu_backup, tms_stats_json, tms_torch_free, tms_torch_malloc, "
	"tms_torch_pool_begin_allocate_to_pool, tms_torch_pool_end_allocate_to_pool, tms_torch_pool_free, "
	"tms_torch_pool_init, tms_torch_pool_malloc, "
	"tms_torch_pool_malloc_or_throw, tms_torch_pool_memory_fraction, tms_torch_pool_record_stream, "
	"tms_torch_pool_release_pool, tms_torch_pool_reset, tms_torch_pool_snapshot_json, "
	"tms_torch_pool_stats_json, tms_torch_pool_use, "
	"tms_trim, tms_version");
__asm__(".weak cuMemAddressFree, cuMemAddressReserve, cuMemAlloc_v2, cuMemCreate, cuMemExportToShareableHandle, "
	"cuMemFreeAsync, cuMemFree_v2, cuMemGetAddressRange_v2, cuMemImportFromShareableHandle, cuMemMap, cuMemRelease, "
	"cuMemRetainAllocationHandle, cuMemSetAccess, cuMemUnmap, cuMulticastCreate, cuPointerGetAttribute, "
	"cudaGetDriverEntryPoint");

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

/* The call returns the code, and the error has these words. */
#define FAILS(expression, code, words)                                                             \
	do {                                                                                       \
		EXPECT(expression, code);                                                          \
		CHECK(strstr(tms_last_error(), words));                                            \
	} while (0)

#define IN_REGION(statement)                                                                       \
	do {                                                                                       \
		tms_set_interesting_region(true);                                                  \
		statement;                                                                         \
		tms_set_interesting_region(false);                                                 \
	} while (0)

#define AWAIT(condition)                                                                           \
	while (!(condition))                                                                       \
	usleep(500)

#define PAUSE_AND_RESUME(tag)                                                                      \
	do {                                                                                       \
		EXPECT(tms_pause(tag), 0);                                                         \
		EXPECT(tms_resume(tag), 0);                                                        \
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

/* Launches that kernel for one word, and loads it the first time. Returns the driver's code. */
static inline int launch_add(unsigned *word, unsigned number)
{
	static void *kernel;
	void *library, *parameters[] = {&word, &(uint64_t){1}, &number};
	if (!kernel) {
		EXPECT(cuLibraryLoadData(&library, ADD_KERNEL, NULL, NULL, 0, NULL, NULL, 0), 0);
		EXPECT(cuLibraryGetKernel(&kernel, library, "cudasim_add"), 0);
	}
	return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

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

static inline void sim_clear_failures(void)
{
	((void (*)(void))simulator("cudasim_clear_failures"))();
}

/* Waits until the simulator's state is so. */
static inline void becomes(const char *stat, uint64_t wanted)
{
	for (int tries = 0; sim_stat(stat) != wanted && tries < 60000; tries++)
		usleep(1000);
	EXPECT(sim_stat(stat), wanted);
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

/* Returns what such a function writes, to be freed. */
static inline char *text_of(size_t (*write)(char *, size_t))
{
	size_t room = write(NULL, 0) + 4096; /* because the text may grow */
	char *text = malloc(room);
	CHECK(text && write(text, room) < room);
	return text;
}

static inline char *stats(void)
{
	return text_of(tms_stats_json);
}

static inline bool stats_say(const char *words)
{
	char *text = stats();
	bool found = strstr(text, words);
	free(text);
	return found;
}

/* Reports whether a thread sleeps in a system call. */
static inline bool in_call(pid_t thread, int number)
{
	char path[64];
	int is = -1;
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
	FILE *file = fopen(path, "r");
	bool read = file && fscanf(file, "%d", &is) == 1;
	if (file)
		fclose(file);
	return read && is == number;
}

static inline void start(pthread_t *thread, void *(*run)(void *), void *argument)
{
	EXPECT(pthread_create(thread, NULL, run, argument), 0);
}

static inline void join(pthread_t thread)
{
	EXPECT(pthread_join(thread, NULL), 0);
}

static inline void on_a_thread(void *(*run)(void *), void *argument)
{
	pthread_t thread;
	start(&thread, run, argument);
	join(thread);
}

/* Each of the threads gets its number. */
static inline void start_all(pthread_t *threads, intptr_t count, void *(*run)(void *))
{
	for (intptr_t i = 0; i < count; i++)
		start(&threads[i], run, (void *)i);
}

static inline void join_all(const pthread_t *threads, int count)
{
	for (int i = 0; i < count; i++)
		join(threads[i]);
}

/* Waits for a child, and returns its code; that of a signal which ended it is negative. */
static inline int code_of(pid_t child)
{
	int status = -1;
	EXPECT(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Waits as a callback of a stream, until the semaphore is posted. */
static inline void wait_at(void *semaphore)
{
	while (sem_wait(semaphore) != 0)
		;
}

static inline double now(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline void limit_to(int resource, rlim_t amount)
{
	struct rlimit limit;
	EXPECT(getrlimit(resource, &limit), 0);
	limit.rlim_cur = amount < limit.rlim_max ? amount : limit.rlim_max;
	EXPECT(setrlimit(resource, &limit), 0);
}

static inline size_t address_space(void)
{
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "r");
	CHECK(statm);
	EXPECT(fscanf(statm, "%lu", &pages), 1);
	fclose(statm);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns what a descriptor is, "" if it is closed. */
static inline const char *target_of(int fd)
{
	static __thread char text[4096];
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, text, sizeof text - 1);
	text[length > 0 ? length : 0] = 0;
	return text;
}

/* The simulated device has descriptors of its own, which the host must leave alone. */
static inline bool is_device(int fd)
{
	return strstr(target_of(fd), "cudasim");
}

/* Counts the names in a directory. */
static inline int names_in(const char *directory)
{
	int count = 0;
	DIR *opened = opendir(directory);
	for (struct dirent *entry; opened && (entry = readdir(opened));)
		count += entry->d_name[0] != '.';
	if (opened)
		closedir(opened);
	return count;
}

/* Counts the files of a directory that threads of this process have open: one that all have counts with each. */
static inline int files_of_threads(const char *directory)
{
	int count = 0;
	DIR *threads = opendir("/proc/self/task");
	CHECK(threads);
	for (struct dirent *thread; (thread = readdir(threads));) {
		char path[640], target[4096];
		snprintf(path, sizeof path, "/proc/self/task/%s/fd", thread->d_name);
		DIR *opened = thread->d_name[0] == '.' ? NULL : opendir(path);
		for (struct dirent *entry; opened && (entry = readdir(opened));) {
			snprintf(path, sizeof path, "/proc/self/task/%s/fd/%s", thread->d_name, entry->d_name);
			ssize_t length = readlink(path, target, sizeof target - 1);
			target[length > 0 ? length : 0] = 0;
			size_t prefix = strlen(directory);
			count += strncmp(target, directory, prefix) == 0 && target[prefix] == '/';
		}
		if (opened)
			closedir(opened);
	}
	closedir(threads);
	return count;
}

/* The kernel filters the system calls of this thread, and of its children, from now on. */
static inline void filter_calls(struct sock_filter *filter, size_t length)
{
	struct sock_fprog program = {(unsigned short)length, filter};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Runs the part of a program that has this name, as RUN_PART(argv[1], {"name", function}, ...), and reports whether
 * there is one. */
struct part {
	const char *name;
	void (*run)(void);
};
#define RUN_PART(name, ...) run_part((const struct part[]){__VA_ARGS__, {NULL, NULL}}, name)
static inline bool run_part(const struct part *parts, const char *name)
{
	CHECK(name);
	while (parts->name && strcmp(parts->name, name) != 0)
		parts++;
	if (parts->name)
		parts->run();
	return parts->name;
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

/* Pausable memory with a backup and that pattern. */
static inline void *kept_memory(size_t size, const char *tag, unsigned seed)
{
	void *pointer = pausable(size, tag, true);
	fill(pointer, size, seed);
	return pointer;
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
