/* shim is the C between the host's calls and the engine in Go: here is what its files use of each other, and what Go
 * uses of them. What a file keeps to itself is not here. */
#ifndef TMS_SHIM_H
#define TMS_SHIM_H

#include "../reach/communicators.h"
#include "goruntime/goruntime.h"

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

/* alloc.c, free.c: allocating and freeing pausable memory. */
HIDDEN int pausable_malloc(void **pointer, size_t size, int device);
HIDDEN int current_device(int *device); /* a code, with words */
HIDDEN int current_device_of_driver(int *device); /* that of the thread's context; without one, the runtime's */
HIDDEN int pausable_free(void *pointer);

/* mapping.c: memory that the program makes and maps itself. */
enum { NOT_OURS = -1 };
struct mapping_use;
HIDDEN int mapping_use(struct mapping_use *use, uint64_t handle);

HIDDEN bool ipc_shares(void); /* other processes can have pausable memory */

/* token.c: memory that others have by descriptors; as the driver's function, or NOT_OURS. */
HIDDEN int token_export(void *shareable, uint64_t handle, int type, unsigned long long flags);

/* caller.c: the file, without folders, that a function was called by, "" for the program; false: none. And whether
 * it is a library of TMS_EXCLUDE. */
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

/* trace.c: what TMS_TRACE, or tms record, has recorded; nothing happens without it. */
extern _Atomic bool trace_on HIDDEN;
HIDDEN void trace_load(void);
HIDDEN void trace_malloc(int code, const void *address, size_t size, const void *stream, bool pausable);
HIDDEN void trace_pool_malloc(int code, const void *address, size_t size, const void *stream, const void *pool);
/* A free is written down before it is made, when nobody else can have the address yet, and taken back when it
 * failed. */
#define TRACE_SAME_STREAM ((void *)-1) /* as the allocation */
HIDDEN void trace_free(const void *address, const void *stream);
HIDDEN void trace_freed(int code, const void *address);
HIDDEN void trace_changed(void); /* memory that is no allocation: the figures of its tag are of interest */
HIDDEN void trace_pool_destroyed(const void *pool);
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
extern _Atomic bool account_watched HIDDEN; /* what CUDA gives is looked at, by trace.c or account.c */
static inline bool account_is_watched(void)
{
	return atomic_load_explicit(&account_watched, memory_order_relaxed);
}

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

/* operation.c: pause and resume, and what else takes long. */
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
HIDDEN int operation_allowed(void);		/* a code: not from a progress callback */
HIDDEN int operation_transition(int kind, const char *tag, double wait);
HIDDEN int operation_serve(void);		/* the process listens on its socket (control.go) */
HIDDEN void operation_result(uint64_t bytes);	/* what tms_last_bytes tells */
HIDDEN int operation_apart(const struct operation *asked, uint64_t *result); /* of which tms_last_bytes tells nothing */
/* Of what another process has; it waits where that is paused, if only as long as this one is held up, for then all
 * are. */
HIDDEN int operation_import(const struct operation *asked, uint64_t *result);
HIDDEN void operation_finish(struct operation *operation, int code, const char *error, uint64_t bytes);
HIDDEN void operation_progress(int device, const char *kind, uint64_t done, uint64_t total);

/* gate.c: the gate of libtms_reach.so, for gate.go. */
struct gate_user { /* a thread's last call, or one that it is in */
	pid_t thread;
	bool lives;
	bool works, inside; /* it gives the device work now; or it is inside any call, such as one that ends a stream */
	const char *call;
	uintptr_t stream;
};
HIDDEN const char *gate_unusable(void);	 /* the words for why there is none; NULL: there is */
HIDDEN const char *gate_not_gated(void); /* a function in use that passes by it; NULL: none */
HIDDEN int gate_set(enum gate_state state);		 /* an errno */
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
HIDDEN uintptr_t gate_exported(size_t index, bool ranges); /* of memory that was exported; 0: no more; as gate.h */
HIDDEN void gate_gone(uintptr_t address); /* it was freed since */
HIDDEN bool gate_self_starting(char *name, size_t size); /* a library is loaded that starts work by itself */

/* nccl.c: NCCL, as libtms_reach.so sees it (its communicators.h), for nccl.go and align.go; nothing where it is not
 * preloaded. */
HIDDEN bool nccl_is_unseen(void); /* at registering memory that it can use after a pause */
#define X(returns, name, parameters, arguments) HIDDEN returns nccl_##name parameters;
GATE_NCCL(X)
#undef X

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

/* shared.c: memory by handles that is of the account, or could be shared with other processes; as the driver's
 * functions. */
extern _Atomic bool shared_watched HIDDEN; /* there was some */
extern _Atomic bool handles_tracked HIDDEN; /* some memory by handles is pausable */
extern _Atomic bool handles_watched HIDDEN; /* that, or shared_watched */
HIDDEN void handles_track(void);
HIDDEN void shared_created(uint64_t handle, size_t size, struct account_owner *owner);
HIDDEN int shared_import(uint64_t *handle, void *shareable, int type);
HIDDEN int shared_export(void *shareable, uint64_t handle, int type, unsigned long long flags);
HIDDEN int shared_retain(uint64_t *handle, void *address);
HIDDEN int shared_release(uint64_t handle);
HIDDEN int shared_map(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags);
HIDDEN int shared_unmap(uintptr_t address, size_t size);
HIDDEN const char *shared_obstacle(void); /* a function by which memory that is there is shared; NULL: none is */

/* obstacle.c: calls after which the driver's checkpoint may lose the process. */
HIDDEN int obstacle_note(const char *call, int code); /* that one was made, if it has worked; the code */
HIDDEN const char *obstacle_noted(void);		 /* one of them; NULL: there is none */

/* everything.c: the driver's checkpoint of this process. */
HIDDEN bool everything_asked(void);	     /* it is made, or about to be: calls of the driver may wait */
HIDDEN void everything_set(bool now);
HIDDEN bool everything_pending(void); /* a client is at it, and will keep or undo it */
HIDDEN void everything_set_pending(bool now);
HIDDEN bool everything_driver_has(void);     /* the driver has the process locked or checkpointed */
HIDDEN const char *everything_obstacle(void); /* a function whose memory cannot be checkpointed; NULL: there is none */
HIDDEN int everything_pause(double timeout, uint64_t *bytes);
HIDDEN int everything_restore(double wait); /* the driver's part undone; nothing where it was not asked for */

/* pool.c: what pool.go asks of the host's CUDA, on the calling thread. */
HIDDEN int pool_cuda_malloc(void **pointer, size_t size, int device);
HIDDEN int pool_cuda_free(uintptr_t pointer, int device);
HIDDEN bool pool_is_captured(uintptr_t stream);

#endif
