/* shim is the C between the host's calls and the engine in Go: here is what its files use of each other, and what Go
 * uses of them. What a file keeps to itself is not here. */
#ifndef TMS_SHIM_H
#define TMS_SHIM_H

#include "../reach/communicators.h"

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define OUT_OF_LINE static __attribute__((noinline))
#define HOT __attribute__((aligned(64))) /* its cost is not where the linker puts it */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* cudaError_t numbers. */
enum {
	SUCCESS = 0,
	ERROR_INVALID_VALUE = 1,
	ERROR_MEMORY_ALLOCATION = 2,
	ERROR_FORKED = 3,
	ERROR_OPERATING_SYSTEM = 304,
	ERROR_ILLEGAL_STATE = 401,
	ERROR_NOT_SUPPORTED = 801,
};

/* enter.c: what is kept for a thread until it ends: the words of its last failure, and the stack that
 * faults inside Go land on where the thread has none of its own for them. */
enum { THREAD_TEXT_SIZE = 1024 };
struct thread {
	char text[THREAD_TEXT_SIZE], line[THREAD_TEXT_SIZE]; /* of its last line on stderr */
	stack_t faults;
	struct visit *visit; /* the innermost; NULL: not in Go */
	bool known_to_go;    /* which has noted where faults land */
};
extern __thread struct thread *thread_known __attribute__((tls_model("initial-exec"))) HIDDEN;
HIDDEN struct thread *thread_new(void); /* NULL: no memory */
static inline struct thread *thread_mine(void)
{
	return likely(thread_known) ? thread_known : thread_new();
}

/* message.c: the calling thread's last failure. */
HIDDEN void error_set(const char *text);
HIDDEN int error_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
HIDDEN void error_prefix(const char *words); /* put before its words */
HIDDEN void error_log(const char *text); /* one line on stderr */
HIDDEN void error_log_failure(const char *function, int code); /* the last failure, in a line */

/* enter.c: as pthread_atfork; and whether the process has forked since a mark was set, by whatever call. */
HIDDEN void fork_notify(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
struct fork_mark {
	_Atomic(volatile char *) page; /* of one byte, 1 until the kernel empties it in a child; or NULL */
	_Atomic pid_t process;	       /* 0: not set */
};
HIDDEN void fork_mark_set(struct fork_mark *mark);
HIDDEN bool fork_other_process(struct fork_mark *mark);

static inline bool fork_happened(struct fork_mark *mark)
{
	const volatile char *page = atomic_load_explicit(&mark->page, memory_order_acquire);
	return page ? !*page : fork_other_process(mark);
}

/* message.c: a descriptor and the file that it was of, asked again before each write. */
struct descriptor {
	int number; /* -1: none */
	dev_t device;
	ino_t inode;
};
HIDDEN struct descriptor descriptor_of(int number);
HIDDEN bool descriptor_is_still(struct descriptor then);
HIDDEN void descriptor_load(void);

/* Where the library's file headers start and its code ends, from the linker. */
extern const char __ehdr_start[] HIDDEN;
extern const char etext[] HIDDEN;

/* enter.c: the Go runtime, asleep until first need. */
enum go_state { GO_ASLEEP, GO_STARTING, GO_AWAKE, GO_DEAD };
extern _Atomic int go_state HIDDEN; /* but for forks: go_now */
extern struct fork_mark go_process HIDDEN;

/* Go does not survive fork (its other threads are gone), and neither does CUDA. */
static inline int go_now(void)
{
	int state = atomic_load_explicit(&go_state, memory_order_acquire);
	return state != GO_ASLEEP && unlikely(fork_happened(&go_process)) ? GO_DEAD : state;
}
HIDDEN int go_start(void); /* a code; error_set on failure */

/* While a thread runs Go its signals are blocked: a host handler installed without SA_ONSTACK would
 * otherwise run on a goroutine's stack of a few KiB. Only faults come through. What the thread had is kept
 * here, and is so again when it leaves. */
struct visit {
	struct visit *outer; /* that this one was made inside of: Go calls the host's CUDA, which calls us */
	sigset_t mask;
	stack_t stack;	  /* the thread's own, to be put back */
	bool has_faulted; /* or may: ours is in its place */
};
HIDDEN int go_enter(struct visit *visit); /* a code; on success go_leave must follow */
HIDDEN void go_leave(struct visit *visit);

/* What a call of Go answers, or the code that kept it from being made. */
#define IN_GO(call)                                                                                \
	({                                                                                         \
		struct visit saved_;                                                               \
		int entered_ = go_enter(&saved_);                                                  \
		if (entered_ == SUCCESS) {                                                         \
			entered_ = call;                                                           \
			go_leave(&saved_);                                                         \
		}                                                                                  \
		entered_;                                                                          \
	})

/* memory.c: the memory of the Go runtime, had before it asks. */
HIDDEN bool memory_reserve(void); /* what it needs to start; false: there is no room, and nothing is held */
HIDDEN void memory_release(void); /* before it has started */
HIDDEN size_t memory_at_start(void); /* bytes */
HIDDEN bool memory_spare(int mappings); /* whether so many could be made now, and 16 MiB written */
extern int memory_short HIDDEN; /* less is left than should be; read by room.go too */
extern uint64_t memory_bound HIDDEN; /* bytes that the heap can have */
HIDDEN void memory_extend(void); /* as far as the limits let us */

/* threads.c: the threads of the Go runtime, made before it asks. */
enum {
	PROCESSORS_MAX = 16,	 /* that run Go at a time: no transfer is faster with more */
	THREADS_AT_START = 36,	 /* those, and what may wait in the background, or for the host */
	THREADS_PER_DEVICE = 13, /* what a pause or resume waits on, 8 for files, 4 for the rest; and pending frees */
	OPERATIONS_AT_START = 8, /* of the host's threads at once; more wait on two threads each */
	THREADS_OF_CONTROL = 5,	 /* the socket's, and what it hands on: an operation, which waits on two, a status, memory */
};
HIDDEN bool threads_reserve(int devices, int operations); /* whether those for so many are there, by now */
HIDDEN bool threads_reserve_control(void); /* and those for control.go; stays so */
HIDDEN void threads_release(void);	 /* ends them, while none works */
extern __thread bool threads_is_ours __attribute__((tls_model("initial-exec"))) HIDDEN; /* this one is */
HIDDEN void threads_run(void *(*run)(void *), void *argument);
HIDDEN int threads_processors(void); /* for Go, called on one of them */

/* handlers.c: signal dispositions once the Go runtime has started. */
extern _Atomic unsigned handlers_armed HIDDEN; /* a bit for each fault whose handler is ours */
enum { HANDLERS_BUS = 2, HANDLERS_ALL = 7 };
HIDDEN void handlers_arm(void);
HIDDEN void handlers_find(void); /* the functions behind ours: before a lock that the loader's may not come below */

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

/* alloc.c, free.c: memory of this library, for whoever allocates and frees it. */
HIDDEN int pausable_malloc(void **pointer, size_t size, int device);
HIDDEN int current_device(int *device); /* a code, with words */
HIDDEN int current_device_of_driver(int *device); /* that of the thread's context; without one, the runtime's */
HIDDEN int pausable_free(void *pointer);

/* mapping.c: memory that the program makes and maps itself. */
extern _Atomic bool mapping_tracked HIDDEN; /* some has been made in a region */
extern _Atomic bool mapping_watched HIDDEN; /* that, or it is counted by shared.c */
HIDDEN void mapping_track(void);
enum { NOT_OURS = -1 };
struct mapping_use;
HIDDEN int mapping_use(struct mapping_use *use, uint64_t handle);

HIDDEN bool ipc_shares(void); /* other processes can have pausable memory */

/* token.c: memory that others have by descriptors; as the driver's function, or NOT_OURS. */
HIDDEN int token_export(void *shareable, uint64_t handle, int type, unsigned long long flags);

/* caller.c: the file, without folders, that a function was called by, "" for the program; false: none. And whether it is
 * a library of TMS_EXCLUDE. */
enum { CALLER_NAME_SIZE = 256 };
HIDDEN bool caller_library(const void *address, char name[CALLER_NAME_SIZE]);
HIDDEN bool excluded_caller(const void *address);

/* Inside a call of CUDA's own that may call another function of ours below it, by libtms_reach.so: what the one has
 * left to CUDA the other leaves too. */
extern __thread bool alloc_below __attribute__((tls_model("initial-exec"))) HIDDEN;
#define BELOW(call)                                                                                \
	({                                                                                         \
		bool was_ = alloc_below;                                                           \
		alloc_below = true;                                                                \
		int code_ = (call);                                                                \
		alloc_below = was_;                                                                \
		code_;                                                                             \
	})

/* Whether the allocation function that this stands in is to make pausable memory. */
#define TAKING() TAKING_FOR(__builtin_return_address(0))
#define TAKING_FOR(caller)                                                                         \
	(region_active() && !alloc_below && (likely(!region_config.exclude) || !excluded_caller(caller)))

/* table.c: blocks of account.c's and shared.c's by address. */
struct account_owner;
struct block {
	const void *address; /* or a handle, whose memory it is; NULL: none */
	size_t size;
	union {
		struct account_owner *owner; /* NULL: none, of what is not of the account */
		uint64_t handle; /* that is mapped there */
	};
	union {
		const void *context;
		struct { /* of a handle */
			uint32_t references, mappings : 30, shared : 2; /* 0: not with other processes */
		};
	};
};
struct table {
	struct block *slots;
	size_t slot_count, live;
};
enum { BLOCKS_MAX = 1 << 19 }; /* that are put into one */
HIDDEN struct block *table_find(const struct table *table, const void *address); /* until it is changed; NULL: none */
HIDDEN bool table_put(struct table *table, struct block block);	/* in place of one that is there; false: no memory */
HIDDEN struct block table_take(struct table *table, const void *address); /* of address NULL: there was none */
HIDDEN void table_clear(struct table *table);

/* alloc.c: what CUDA itself gives is looked at too, by trace.c or account.c. */
extern _Atomic bool alloc_watched HIDDEN;
static inline bool alloc_is_watched(void)
{
	return atomic_load_explicit(&alloc_watched, memory_order_relaxed);
}

/* trace.c: what TMS_TRACE, or tms record, has recorded; nothing happens without it. */
extern _Atomic bool trace_on HIDDEN;
HIDDEN void trace_load(void);
HIDDEN void trace_malloc(int code, const void *address, size_t size, const void *stream, bool pausable);
HIDDEN void trace_pool_malloc(int code, const void *address, size_t size, const void *stream, const void *pool);
/* A free is written down before it is made, when nobody else can have the address yet, and taken back when it failed. */
#define TRACE_SAME_STREAM ((void *)-1) /* as the allocation */
HIDDEN void trace_free(const void *address, const void *stream);
HIDDEN void trace_freed(int code, const void *address);
HIDDEN void trace_changed(void); /* memory that is no allocation: the figures of its tag are of interest */
HIDDEN void trace_pool_destroyed(const void *pool);
HIDDEN bool trace_faulted(const void *address); /* in a handler: it was the file's memory, and the instruction can go on */
HIDDEN int trace_recording(void); /* which one it is, from 1 on */
HIDDEN const char *trace_start(const char *file); /* for tms record; NULL, or why not */
HIDDEN const char *trace_end(int recording);	  /* that; NULL, or why it had ended before */
static inline bool trace_is_on(void)
{
	return atomic_load_explicit(&trace_on, memory_order_relaxed);
}

/* What recording.go tells. Tags are interned; NULL: all, or none. */
enum trace_kind { TRACE_PAUSE = 1, TRACE_RESUME, TRACE_MOVE };
struct trace_operation {
	uint32_t number; /* not 0; the same when it begins and when it is over, on whichever thread */
	bool over;	 /* else it begins, and what follows the tag is 0 */
	enum trace_kind kind;
	const char *tag;
	int code;
	uint64_t bytes, copied;		/* of device memory given back or taken; of contents */
	uint64_t took, waited, copying; /* nanoseconds: in all, and of that */
};
struct trace_figures { /* of a tag on a device, in bytes */
	int device;
	const char *tag;
	uint64_t live, physical, host, disk, peer;
};
HIDDEN void trace_operation(const struct trace_operation *operation);
HIDDEN void trace_figures(const struct trace_figures *figures);
HIDDEN void trace_allocation(int device, uintptr_t address, uint64_t size, const char *tag, bool earlier, bool mapped);
HIDDEN void trace_unmapped(uintptr_t address, uint64_t size);
HIDDEN void trace_sample_after(uint64_t pause); /* nanoseconds, until tmsTraceFigures is called again */

/* account.c: what CUDA itself gives to each library, where TMS_ACCOUNT asks for it; nothing happens without it. */
extern bool account_on HIDDEN; /* from load on */
enum { ACCOUNT_OWNERS_MAX = 512, ACCOUNT_POOLS_MAX = 64 };
struct account_owner {
	const char *library; /* a file's name; interned */
	int device;
	uint64_t bytes, allocations;
};
struct account_pool {
	void *pool; /* CUmemoryPool */
	const char *library; /* the first that took memory from it; interned */
	int device;
};
HIDDEN void account_load(void);
HIDDEN void account_malloc(const void *address, size_t size, const void *caller); /* after it was made */
HIDDEN struct block account_free(const void *address);				  /* before */
HIDDEN void account_unfree(struct block block);					  /* it has failed */
/* Before a context is destroyed; after; before a device is reset. */
HIDDEN void account_context_leaves(const void *context);
HIDDEN void account_context_left(const void *context, bool gone);
HIDDEN void account_device_resets(int device);
/* Of memory by handles, which has its owner from before it is counted. NULL: it is not. */
HIDDEN struct account_owner *account_owner_of(const void *caller, int device);
HIDDEN void account_add(const struct block *block, bool has_room);
HIDDEN void account_subtract(const struct block *block);
HIDDEN void account_pool(void *pool, const void *caller); /* before memory is taken from it; NULL: the device's current */
/* All, and how many allocations found no room. Between begin and end no pool that is told is destroyed. */
HIDDEN size_t account_owners(struct account_owner out[ACCOUNT_OWNERS_MAX], uint64_t *not_counted);
HIDDEN size_t account_pools_begin(struct account_pool out[ACCOUNT_POOLS_MAX]);
HIDDEN void account_pools_end(void);

/* device.c: contexts that the program has made, by slot; every acquire that returns one needs a release. */
extern int context_slots HIDDEN;
HIDDEN uintptr_t context_acquire(int slot, int device); /* 0: none there of the device */
HIDDEN void context_release(int slot);

/* capture.c: streams of this process that are being captured into graphs. */
extern int captures HIDDEN; /* how many; read by Go too */
static inline bool capturing(void)
{
	return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0;
}

HIDDEN void captures_forget(const void *context); /* which is gone */
/* While they are held none begins; false where there is one. For a moment. */
HIDDEN bool captures_hold(void);
HIDDEN void captures_let(void);

/* query: cudaStreamIsCapturing or cuStreamIsCapturing. */
static inline bool is_captured(int (*query)(void *, int *), void *stream)
{
	int status = 0;
	return capturing() && query(stream, &status) == SUCCESS && status != 0;
}

/* What stream 0 means: the legacy stream, or for the _ptsz functions the thread's own. */
#define PER_THREAD_STREAM ((void *)2)
static inline void *own_stream(void *stream)
{
	return stream ? stream : PER_THREAD_STREAM;
}

/* message.c: what Go hands over in words, NULL when there is no memory. */
HIDDEN char *text_copy(const char *text, size_t length);

/* api.c: pause and resume. They take long, so they run on a thread of the Go runtime while
 * the caller waits with its signals open and its CUDA context untouched. */
enum operation_kind {
	OPERATION_PAUSE,
	OPERATION_DISCARD,
	OPERATION_RESUME,
	OPERATION_PREPARE,
	OPERATION_TRIM,
	OPERATION_PAUSE_GATED,
	OPERATION_SERVE,
	OPERATION_IMPORT,
	OPERATION_CLOSE,
	OPERATION_IMPORT_HANDLE,
};
/* ipc.c: what cudaIpcGetMemHandle gives for memory of ours; and what is in the files of token.c. */
struct ipc_handle {
	char magic[8];
	uint32_t pid, unused;
	uint64_t start; /* of the process, in clock ticks since the machine's */
	uint64_t id, offset, size; /* of the segment, where in it the allocation begins, the segment's bytes */
	uint64_t reserved[2];
};
struct operation {
	int kind;
	const char *tag; /* NULL: all */
	bool retain_cpu_backup;
	const char *disk_dir, *disk_setting; /* and what that came from; "": it is the default */
	double wait; /* seconds: of a resume for memory, of a gated pause for the program, of a pause for importers or below 0 */
	struct ipc_handle ipc; /* of imports; of a close, id is the address */
	int device;	       /* of imports */
	bool force;  /* of a gated pause */
	bool report; /* to operation_progress */
	int code;
	uint64_t bytes; /* of device memory that were freed, or mapped; of an import, the address, or the handle */
	sem_t done;
	_Atomic int users; /* the caller, and the thread that runs it */
	char error[]; /* "": none; THREAD_TEXT_SIZE, but where it is asked for */
};
/* Fills in what holds for the process; temporary is TMPDIR. */
HIDDEN void operation_settings(struct operation *operation, const char *temporary);
HIDDEN int operation_apart(const struct operation *asked, uint64_t *result); /* of which tms_last_bytes tells nothing */
/* Of what another process has; it waits where that is paused, if only as long as this one is held up, for then all are. */
HIDDEN int operation_import(const struct operation *asked, uint64_t *result);
HIDDEN void operation_finish(struct operation *operation, int code, const char *error, uint64_t bytes);
HIDDEN void operation_progress(int device, const char *kind, uint64_t done, uint64_t total);

/* gate.c: the gate of libtms_reach.so, for gate.go; the states are its gate.h's. */
enum { GATE_OPENED, GATE_SHUT_FOR_CAPTURES, GATE_SHUT, GATE_SHUT_FOR_NAMING, GATE_SHUT_FOR_CHECKPOINT };
struct gate_user { /* a thread's last call, or one that it is in */
	pid_t thread;
	bool lives;
	bool works, inside; /* it gives the device work now; or it is inside any call, such as one that ends a stream */
	const char *call;
	uintptr_t stream;
};
HIDDEN const char *gate_unusable(void);	 /* the words for why there is none; NULL: there is */
HIDDEN const char *gate_not_gated(void); /* a function in use that passes by it; NULL: none */
HIDDEN int gate_set(int state);		 /* an errno */
HIDDEN bool gate_is_shut(void);
/* Since the last of these a thread has given the device work, or it does now. */
HIDDEN bool gate_has_worked(void);
HIDDEN bool gate_is_waited_for(void);	  /* while it is shut */
HIDDEN void gate_hold_allocations(void);  /* until it opens */
HIDDEN void gate_before_allocation(void); /* waits for that, where allocations are held */
HIDDEN void gate_wait(void);		  /* until it is open */
HIDDEN bool gate_look(const void **cursor, struct gate_user *user); /* *cursor: NULL at first; false: no more */
HIDDEN bool gate_inside(struct gate_user *user); /* a thread that is in any call, one that polls included; false: none */
HIDDEN bool gate_polls(const char *symbol); /* the driver's checkpoint has such calls wait at the gate, and nothing else does */
HIDDEN uintptr_t gate_exported(size_t index, bool ranges); /* an address whose memory was given to others; 0: no more; as gate.h */
HIDDEN void gate_gone(uintptr_t address); /* it was freed since */
HIDDEN bool gate_self_starting(char *name, size_t size); /* a library is loaded that starts work by itself */

/* nccl.c: NCCL, as libtms_reach.so sees it (its gate.h), for nccl.go. The last four after a look that found something. */
HIDDEN bool nccl_look(size_t *cursor, bool ask, struct gate_communicator *to);
HIDDEN bool nccl_is_unseen(void); /* at registering memory that it can use after a pause */
HIDDEN bool nccl_look_at_memory(size_t *cursor, struct gate_registration *to);
HIDDEN void nccl_hold(bool on);
HIDDEN bool nccl_is_used(void);
HIDDEN void nccl_together(uint64_t clique);
HIDDEN bool nccl_begin(bool suspend);
HIDDEN bool nccl_is_busy(void);
HIDDEN void nccl_give_up(void);
/* How far ranks are, for align.go. After gate_unusable has been asked, but nccl_release. */
HIDDEN bool nccl_sequences(size_t *cursor, struct gate_sequence *to);
HIDDEN bool nccl_is_launching(void);
HIDDEN bool nccl_has_captured(void);
HIDDEN void nccl_freeze(void);
HIDDEN void nccl_limit(const struct gate_sequence *targets, size_t count);
HIDDEN void nccl_release(void);

/* Around what begins a capture: nobody is noted as capturing while the gate holds him up. */
struct gate_call;
struct gate_mark;
HIDDEN struct gate_mark *gate_enter_capture(const struct gate_call *call, void *stream);
HIDDEN void gate_leave_capture(struct gate_mark *mark);

/* control.c: the socket by which others steer the process. */
struct control_environment {
	const char *runtime_dir, *temporary; /* XDG_RUNTIME_DIR and TMPDIR; NULL: unset; interned */
};
extern struct control_environment control_environment HIDDEN;
HIDDEN void control_load(void);
HIDDEN void control_bound(const char *path, dev_t device, ino_t inode);
extern const char *tms_version(void);

/* shared.c: memory by handles that is of the account, or could be shared with other processes; as the driver's functions. */
extern _Atomic bool shared_watched HIDDEN; /* there was some */
HIDDEN void shared_created(uint64_t handle, size_t size, struct account_owner *owner);
HIDDEN int shared_import(uint64_t *handle, void *shareable, int type);
HIDDEN int shared_export(void *shareable, uint64_t handle, int type, unsigned long long flags);
HIDDEN int shared_retain(uint64_t *handle, void *address);
HIDDEN int shared_release(uint64_t handle);
HIDDEN int shared_map(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags);
HIDDEN int shared_unmap(uintptr_t address, size_t size);
HIDDEN const char *shared_obstacle(void); /* a function by which memory that is there is shared; NULL: none is */

/* everything.c: the driver's checkpoint of this process. */
HIDDEN bool everything_asked(void);	     /* it is made, or about to be: calls of the driver may wait */
HIDDEN void everything_set(bool now);
HIDDEN bool everything_pending(void); /* a client is at it, who will keep or undo it */
HIDDEN void everything_set_pending(bool now);
HIDDEN bool everything_driver_has(void);     /* the driver has the process locked or checkpointed */
HIDDEN const char *everything_obstacle(void); /* a function whose memory cannot be checkpointed; NULL: there is none */
HIDDEN int everything_note(const char *call, int code); /* that one was, if it has worked; the code */
HIDDEN int everything_pause(double timeout, uint64_t *bytes);
HIDDEN int everything_restore(double wait); /* the driver's part undone; nothing where it was not asked for */
extern int tms_serve(void);

/* pool.c: what pool.go asks of the host's CUDA, on the calling thread. */
HIDDEN int pool_cuda_malloc(void **pointer, size_t size, int device);
HIDDEN int pool_cuda_free(uintptr_t pointer, int device);
HIDDEN bool pool_is_captured(uintptr_t stream);

#endif
