/* seam is what the C files of preload share: codes, errors, the Go runtime's state, the arenas. */
#ifndef TMS_SEAM_H
#define TMS_SEAM_H

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* cudaError_t numbers. */
enum {
	SUCCESS = 0,
	ERROR_INVALID_VALUE = 1,
	ERROR_MEMORY_ALLOCATION = 2,
	ERROR_FORKED = 3,
	ERROR_OPERATING_SYSTEM = 304,
	ERROR_NOT_SUPPORTED = 801,
};

/* error.c: the calling thread's last failure. */
HIDDEN void error_set(const char *text);
HIDDEN int error_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
HIDDEN void error_log(const char *text); /* one line on stderr */

/* Where the library's file headers start and its code ends, from the linker. */
extern const char __ehdr_start[] HIDDEN;
extern const char etext[] HIDDEN;

/* start.c: the Go runtime, asleep until first need. */
enum go_state { GO_ASLEEP, GO_STARTING, GO_AWAKE, GO_DEAD };
extern _Atomic int go_state HIDDEN;
HIDDEN int go_start(void); /* a code; error_set on failure */

/* While a thread runs Go its signals are blocked: a host handler installed without SA_ONSTACK
 * would otherwise run on a goroutine's stack of a few KiB. */
HIDDEN int go_enter(sigset_t *saved); /* a code; on success go_leave must follow */
HIDDEN void go_leave(const sigset_t *saved);

/* Where this thread stands; a thread of the Go runtime, or a host thread that never needed Go, stays
 * UNKNOWN. */
enum { GO_THREAD_UNKNOWN, GO_THREAD_OUTSIDE, GO_THREAD_INSIDE };
extern __thread char go_thread __attribute__((tls_model("initial-exec"))) HIDDEN;

/* handlers.c: signal dispositions around the start of the Go runtime. */
HIDDEN void handlers_save(void);
HIDDEN void handlers_restore(void);

/* arenas.c: the address ranges that are ours. Append-only, read without a lock. */
#define ARENAS_MAX 64
struct arena_range {
	uintptr_t base;
	size_t size;
};
extern struct arena_range arena_ranges[ARENAS_MAX] HIDDEN;
extern _Atomic int arena_count HIDDEN;
HIDDEN int arena_add(uintptr_t base, size_t size);

static inline bool arena_contains(const void *address)
{
	int count = atomic_load_explicit(&arena_count, memory_order_acquire);
	for (int i = 0; i < count; i++)
		if ((uintptr_t)address - arena_ranges[i].base < arena_ranges[i].size)
			return true;
	return false;
}

/* pausable.c: memory of this library, for every interposed allocation function. */
HIDDEN int pausable_malloc(void **pointer, size_t size, int device);
HIDDEN int pausable_malloc_here(void **pointer, size_t size); /* on the current device */
HIDDEN int pausable_free(void *pointer);
HIDDEN int pausable_free_after(void *pointer, void *stream); /* once the stream has come to it */

/* reclaim.c: whether memory could be given back, so that an allocation should be tried again. */
HIDDEN bool reclaim_on(int device, size_t size);
HIDDEN bool reclaim(size_t size);
#define RECLAIMING(size, call)                                                                     \
	({                                                                                         \
		int code_ = call;                                                                  \
		if (unlikely(code_ == ERROR_MEMORY_ALLOCATION) && reclaim(size))                   \
			code_ = call;                                                              \
		code_;                                                                             \
	})

/* driver.c, pitched.c, pointer.c */
HIDDEN int pausable_driver_malloc(uintptr_t *pointer, size_t size);
HIDDEN bool pausable_pitch(size_t width, size_t height, size_t depth, size_t *pitch, size_t *size);
HIDDEN int refuse_ipc(void);

/* capture.c: streams of this process that are being captured into graphs. */
extern _Atomic int captures HIDDEN;

/* operation.c: pause and resume. They take long, so they run on a thread of the Go runtime while
 * the caller waits with its signals open and its CUDA context untouched. */
enum operation_kind {
	OPERATION_PAUSE,
	OPERATION_RESUME,
	OPERATION_PREPARE,
	OPERATION_TRIM,
	OPERATION_SHRINK,
};
struct operation {
	int kind;
	const char *tag; /* NULL: all */
	bool retain_cpu_backup;
	bool capturing;
	uint64_t host_pool_bytes;
	const char *disk_dir;
	uint64_t disk_chunk;
	uint64_t extent_bytes;
	double wait; /* seconds */
	bool verify;
	bool report; /* to operation_progress */
	int device;     /* of a shrink */
	uint64_t bytes; /* of a shrink: wanted, then given back */
	int code;
	char *error; /* malloc'ed, or NULL */
	sem_t done;
};
HIDDEN void operation_finish(struct operation *operation, int code, char *error);
HIDDEN uint64_t operation_shrink(int device, size_t size); /* bytes given back */
HIDDEN void operation_progress(int device, const char *kind, uint64_t done, uint64_t total);

/* Flags of tmsMalloc. */
enum {
	MALLOC_CPU_BACKUP = 1,
	MALLOC_DISK_BACKUP = 2,
	MALLOC_CAPTURING = 4,
	MALLOC_PEER_BACKUP = 8,
	MALLOC_INCREMENTAL = 16,
};

#endif
