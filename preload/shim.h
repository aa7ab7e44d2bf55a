/* shim is the C between the host's calls and the engine in Go. This header declares the functions and types that its
 * files use from each other, and that Go uses from them. */
#ifndef TMS_SHIM_H
#define TMS_SHIM_H

#include "forward.h"
#include "gate/gate.h"
#include "goruntime/goruntime.h"
#include "region.h"
#include "tms.h"
#include "watch/watch.h"

#include <semaphore.h>

/* arenas.c: the address ranges of pausable memory. The list only grows, and is read without a lock. */
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

extern _Atomic bool handles_tracked HIDDEN; /* some memory by handle is pausable */
HIDDEN void handles_track(void);
/* Reports whether pausable memory may lie at an address. Where the program maps it itself, that is any address. */
static inline bool may_be_ours(uintptr_t address)
{
	return unlikely(arena_contains((const void *)address)) ||
	       unlikely(atomic_load_explicit(&handles_tracked, memory_order_relaxed));
}

/* alloc.c, free.c: allocating and freeing pausable memory. */
HIDDEN int pausable_malloc(void **pointer, size_t size, int device);
HIDDEN int current_device(int *device); /* a code, and an error's text */
HIDDEN int current_device_of_driver(int *device); /* of the thread's context; without one, the runtime's */
HIDDEN int pausable_free(void *pointer);

/* query.c: CUDA's answers for memory while it is active. */
struct memory_at {
	uintptr_t base, mapping; /* the allocation, and the granules around it */
	size_t size, mapping_size;
	uint64_t id, handle_types, access;
	int device;
	bool rdma;
	bool own; /* the engine made it, as for cudaMalloc */
	bool ipc; /* cudaIpcGetMemHandle makes a handle of it */
};

/* mapping.c: memory that the program makes and maps itself. */
enum { NOT_OURS = -1, MEMORY_IS_PAUSED = -2 /* for MUST_BE_ACTIVE */ };
/* Makes a call that returns MEMORY_IS_PAUSED, or the code that the program gets. While the gate stops the program, the
 * thread waits as at the gate. The call is made again then, and once more where memory may have come back in between. */
#define MUST_BE_ACTIVE(call)                                                                       \
	({                                                                                         \
		int active_;                                                                       \
		for (int tries_ = 0; (active_ = (call)) == MEMORY_IS_PAUSED; tries_++) {           \
			if (gate_is_closed()) {                                                      \
				tries_ = 0;                                                        \
				if ((active_ = gate_wait()) != SUCCESS)                            \
					break;                                                     \
			} else if (tries_ > 0) {                                                   \
				active_ = ERROR_NOT_SUPPORTED;                                     \
				break;                                                             \
			}                                                                          \
		}                                                                                  \
		active_;                                                                           \
	})
/* query.c */
HIDDEN bool query_is_paused(uintptr_t address);
HIDDEN void query_explain_refused(const char *call); /* sets the thread's text, where paused memory is the likely reason */
/* The use that mapping_use makes of the driver's handle. */
struct mapping_use {
	void *out;
	int type; /* an export's, or 0 to get the properties */
	unsigned long long flags;
};
HIDDEN int mapping_use(struct mapping_use *use, uint64_t handle);

HIDDEN bool ipc_shares(void); /* other processes can have pausable memory */

/* token.c: memory exported by descriptor. Returns the driver's codes, or NOT_OURS. */
HIDDEN int token_export(void *shareable, uint64_t handle, int type, unsigned long long flags);

/* below.c: true inside a CUDA call that libtms_reach.so may lead back to another function of this library. If the outer function
 * has left a call to CUDA, the inner one does so, too. */
extern __thread bool call_is_below __attribute__((tls_model("initial-exec"))) HIDDEN;
#define BELOW(call)                                                                                \
	({                                                                                         \
		bool was_ = call_is_below;                                                           \
		call_is_below = true;                                                                \
		int code_ = (call);                                                                \
		call_is_below = was_;                                                                \
		code_;                                                                             \
	})

/* The return address in the caller of the surrounding exported function. */
#define CALLER() (unlikely(forward_caller.major) ? forward_caller.address : __builtin_return_address(0))

/* True if the surrounding allocation function makes pausable memory. */
#define TAKING() TAKING_FOR(CALLER())
#define TAKING_FOR(caller)                                                                         \
	(region_active() && !call_is_below && (likely(!region_config.exclude) || !caller_is_excluded(caller)))

/* copies.c: some memory is paused that no gate keeps the program from (Engine.Exposed). Go sets it. */
extern uint32_t copies_checked HIDDEN;
static inline bool copies_are_checked(void)
{
	return unlikely(__atomic_load_n(&copies_checked, __ATOMIC_RELAXED) != 0);
}
HIDDEN uintptr_t copies_exposed(uintptr_t address); /* 0 if nothing like that is there */
HIDDEN void copies_log_refused(void); /* the thread's text, as a line */

/* lasterror.c: notes the result of a function of the runtime that was not passed on to CUDA, and returns it. The
 * driver's functions have no last error; api is what both begin with. */
HIDDEN int runtime_result(int code);
#define RESULT_OF(api, code) RESULT_OF_##api(code)
#define RESULT_OF_cuda(code) runtime_result(code)
#define RESULT_OF_cu(code) (code)
#define RESULT_OF_ANY(name, code) (__builtin_strncmp(name, "cuda", 4) == 0 ? runtime_result(code) : (code))

/* nvml.c: this library's function in the place of theirs, of NVML; or NULL. */
HIDDEN void *nvml_function(const char *name, void *theirs);

/* held.c: NVML for the time of a snapshot. */
HIDDEN void held_load(void);
HIDDEN void *held_function(const char *name, void *found); /* what a program that asked for it is given; found may be NULL */
HIDDEN const char *held_unseen(void); /* why not all calls can be held, or NULL */
HIDDEN int held_hold(double seconds); /* a code; calls wait from now on. Again it does nothing */
HIDDEN int held_end(void);	      /* a code; ends NVML, after held_hold */
HIDDEN bool held_end_in_vain(void); /* whether held_end is not done: it begins NVML again itself when it can, and returns then */
HIDDEN int held_begin(void);	      /* a code; calls go on, whatever it is */
HIDDEN uint32_t held_snapshot(void);  /* the number of the snapshot for which calls wait, or 0 */
HIDDEN bool held_go_on(uint32_t snapshot); /* lets its calls go if a thread still ends or begins NVML; whether it did */

/* listener.c: a process without pausable memory listens once a client asks. */
HIDDEN void listener_load(void);
HIDDEN void listener_start(void); /* if the process may be steered, has another thread, and no Go runs yet */
HIDDEN void listener_end(void);	  /* Go has started */
HIDDEN bool listener_saw_cuda(void); /* the program has begun CUDA */

/* load.c */
extern bool behind_cudart HIDDEN; /* the program is linked with libcudart before this library */

/* device.c: the contexts that the program made, by slot. Release each context that acquire returns. */
extern int context_slots HIDDEN;
HIDDEN uintptr_t context_acquire(int slot, int device); /* 0 if the slot has none of the device */
HIDDEN void context_release(int slot);

/* capture.c: the streams of this process that are being captured into graphs. */
extern int captures HIDDEN; /* how many; Go reads it too */
static inline bool capturing(void)
{
	return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0;
}

HIDDEN void captures_forget(const void *context); /* one that is gone */
/* Keeps captures from beginning until captures_allow, which must follow soon. Returns false if one is in progress. */
HIDDEN bool captures_prevent(void);
HIDDEN void captures_allow(void);

/* query: cudaStreamIsCapturing or cuStreamIsCapturing. */
static inline bool is_captured(int (*query)(void *, int *), void *stream)
{
	int status = 0;
	return capturing() && query(stream, &status) == SUCCESS && status != 0;
}

/* Stream 0 means the legacy stream, or for the _ptsz functions the thread's own stream. */
#define PER_THREAD_STREAM ((void *)2)
static inline void *own_stream(void *stream)
{
	return stream ? stream : PER_THREAD_STREAM;
}

/* ordered.c: CUDA's pools. Reports whether pausable memory takes the place of a pool's, or of the current pool's, and
 * stores its device, or -1 for the stream's. */
HIDDEN bool ordered_takes(void *pool, bool is_current, int *device);
#define ORDERED_DEVICES 64
extern _Atomic bool ordered_used HIDDEN; /* some memory was allocated in the order of a stream */
extern uint64_t ordered_keep[ORDERED_DEVICES] HIDDEN; /* release thresholds, by device; Go reads them */

/* repeat.c: allocations and frees of a program's steps, which need not enter Go. */
struct repeat_request { /* an allocation may have the memory of a free with the same request */
	size_t size;
	void *stream, *context;
	struct region_settings settings;
	int device; /* as ordered_takes names it */
};
/* Fills in the context, and returns NULL if the engine must allocate. repeat_free returns false if it must free. */
HIDDEN void *repeat_malloc(struct repeat_request *request);
HIDDEN bool repeat_free(void *pointer, void *stream);
/* For the engine, which holds its lock. */
enum repeat_taken { REPEAT_LIVE, REPEAT_FREED, REPEAT_KEPT, REPEAT_LATER };
HIDDEN int repeat_offer(const struct repeat_request *request, uintptr_t address, uint64_t stream_id, uintptr_t event);
HIDDEN int repeat_take(int offer, bool if_freed);

/* operation.c: pause, resume, and other long operations. operation.go has a struct for each kind. */
enum operation_kind {
	OPERATION_PAUSE,
	OPERATION_PAUSE_GATED,
	OPERATION_DISCARD,
	OPERATION_RESUME,
	OPERATION_AWAIT, /* until others keep nothing paused, within the seconds or without end (< 0) */
	OPERATION_PREPARE,
	OPERATION_TRIM,
	OPERATION_SERVE,
	OPERATION_IMPORT,
	OPERATION_IMPORT_HANDLE,
	OPERATION_CLOSE,
	OPERATION_SET_CREATE,
	OPERATION_SET_OPEN,
	OPERATION_SET_ADD,
	OPERATION_SET_SEAL,
	OPERATION_SET_ATTACH,
	OPERATION_SET_ADVANCE,
	OPERATION_SET_BACK,
	OPERATION_SET_SETTLE,
	OPERATION_SET_FOLLOW,
	OPERATION_SET_CLOSE,
};
/* ipc.c: the handle that cudaIpcGetMemHandle returns for pausable memory; token.c's files contain it, too. */
struct ipc_handle {
	char magic[8];
	uint32_t pid, unused;
	uint64_t start; /* of the process, in clock ticks since the machine's */
	uint64_t id, offset, size; /* the segment's number, the allocation's offset in it, the segment's bytes */
	uint64_t reserved[2];
};
struct operation_settings { /* of the process */
	bool retain_cpu_backup;
	const char *disk_dir, *disk_setting; /* and the setting that named it, or "" for the default */
};
/* A pause, a discard, a resume or a preparation. Lists end with NULL. */
struct operation_transition {
	const tms_ordered *ordered; /* of a resume: the order in which memory comes back */
	size_t ordered_count;	    /* 0: all at once */
	uint64_t order;		    /* the number of that order */
	const char *const *tags;      /* or NULL for all */
	const char *const *discarded; /* of a pause: more tags, whose contents are lost; or NULL */
	uint64_t since;		      /* only what later transitions have paused or resumed; 0 for all */
	double wait; /* seconds: a resume's for memory, a gated pause's for the program, a pause's for importers (or < 0) */
};
struct operation_import {
	struct ipc_handle handle;
	int device;
};
/* What is done to a set of memory that no process owns. */
struct operation_set {
	uint64_t handle;	/* of all but a create and an open, which return it */
	const char *name, *tag; /* of a create and an open */
	int device;		/* of a create */
	size_t size;		/* of an add, and of the manifest */
	const void *manifest;	/* of a seal */
};
struct operation {
	int kind;
	struct operation_settings settings;
	struct operation_transition transition;
	struct operation_import imported; /* for OPERATION_IMPORT and OPERATION_IMPORT_HANDLE */
	uintptr_t address;		   /* for OPERATION_CLOSE */
	struct operation_set set;
	int code;
	uint64_t result; /* bytes of device memory that were freed or mapped; or an address, or a handle */
	sem_t done;
	_Atomic int users; /* the caller, and the thread that runs it */
	char error[]; /* "" without one; of THREAD_TEXT_SIZE, except where it is only asked for */
};
/* Fills in the process's settings; temporary is TMPDIR. */
HIDDEN void operation_settings(struct operation_settings *settings, const char *temporary);
/* ONE_TAG makes a list of a tag or NULL. */
HIDDEN int operation_transition(int kind, struct operation_transition asked);
#define ONE_TAG(tag) ((tag) ? (const char *const[]){(tag), NULL} : NULL)
HIDDEN int operation_await(double seconds);	/* OPERATION_AWAIT */
HIDDEN int operation_serve(void);		/* the process listens on its socket (internal/control/server) */
HIDDEN bool operation_has_threads(void);	/* for one more operation; its end calls operation_leave_threads */
HIDDEN void operation_leave_threads(void);
HIDDEN void operation_result(uint64_t bytes);	/* for tms_last_bytes */
HIDDEN int operation_apart(const struct operation *asked, uint64_t *result); /* result: or NULL; leaves last_bytes */
enum { SHARE_STOPPED = -3 }; /* the code of an import: the memory is paused, and the gate stops its process */
/* Imports another process's memory. While the gate stops that process or this one, it waits. */
HIDDEN int operation_import(int kind, const struct ipc_handle *handle, int (*device)(int *), uint64_t *result);
HIDDEN void operation_finish(struct operation *operation, int code, const char *error, uint64_t result);

/* pytorch.c */
HIDDEN void pytorch_empty_cache(double claim, double end); /* seconds to begin, and to end, from the call on */

/* control.c: the socket through which others steer the process. */
struct control_environment {
	const char *runtime_dir, *temporary; /* XDG_RUNTIME_DIR and TMPDIR, interned, or NULL if unset */
};
extern struct control_environment control_environment HIDDEN;
HIDDEN void control_load(void);
HIDDEN void control_bound(const char *path, dev_t device, ino_t inode);
HIDDEN bool control_found(uid_t *user); /* commands of the process's user find it; user began to listen */
extern const char *tms_version(void);
extern double tms_get_resume_wait(void);

/* checkpoint.c, everything.c: the driver's checkpoint of this process. */
HIDDEN bool checkpoint_asked(void);	     /* it is made, or about to be: driver calls may wait */
HIDDEN void checkpoint_set(bool now);
HIDDEN bool checkpoint_pending(void); /* a client is making one, and will keep or undo it */
HIDDEN int checkpoint_refuse(void);   /* fails a call of the program that would wait for the resume */
HIDDEN void checkpoint_set_pending(bool now);
HIDDEN bool checkpoint_driver_has(void);     /* the driver holds the process locked or checkpointed */
HIDDEN int everything_pause(double timeout, uint64_t *bytes);
HIDDEN int everything_restore(double wait); /* undoes the driver's part, if there is one */
/* order.c: the resume with an order that is in progress, or has failed and left memory paused. */
HIDDEN void order_begin(uint64_t number, int step); /* what comes back up to that step is back */
HIDDEN void order_goes_on(int step);
HIDDEN void order_fail(void);
HIDDEN void order_end(void);
/* steps.c */
HIDDEN void steps_hold(bool on); /* no step begins, until as many have been ended as begun */
HIDDEN int steps_in_progress(void);
HIDDEN int keeper_start(void); /* returns when a keeper answers (internal/sets) */
HIDDEN int set_promote(const char *name); /* brings a set back to its device (internal/sets) */

/* helper.c: runs the command tms with these arguments behind the first, which becomes its name. With --report the
 * command writes a line "CODE BYTES", then a text. HELPER_ENDED means that it has ended without the line. For
 * tms_last_error, without names the consequence if the command cannot be started, and then if it has ended early. bytes
 * may be NULL. */
enum { HELPER_ENDED = -1 };
HIDDEN void helper_prepare(void); /* before the first */
HIDDEN int helper_run(char *arguments[], uint64_t *bytes, const char *without, const char *then);

/* share.c: how a process of tms run --share gets device memory when that is short. */
enum { SHORT_OF_MEMORY = -1 }; /* the code of an allocation that others can make room for */
struct share_wanted { /* by a thread that waits for an allocation, or a resume; Go reads it, too */
	int64_t since;	/* CLOCK_MONOTONIC, in ns, or 0 if no thread waits */
	int64_t waited; /* ns of all waits that are over */
	int64_t grew;	/* when the last one for an allocation was over, or 0 */
	uint64_t bytes;
	int device;
	bool resumes; /* the bytes are paused */
};
extern struct share_wanted share_wanted HIDDEN;
/* Calls allocate, and has other processes make room as long as it returns SHORT_OF_MEMORY. */
HIDDEN int share_allocate(int device, size_t size, int (*allocate)(void *), void *with);
/* The same in parts: share_want has room made, and keeps it for the process until share_leave. */
HIDDEN void share_enter(void);
HIDDEN int share_want(size_t bytes, int device, bool resumes); /* a code */
HIDDEN void share_leave(void);
HIDDEN bool share_keeps_reserve(void); /* this thread's allocations leave the reserve free */
/* How much the program, which has so much of a device already, may take there; available is CUDA's answer. */
HIDDEN uint64_t share_may_take(int device, uint64_t has, uint64_t available, uint64_t total);
HIDDEN int share_make_room(void); /* for what this process waits for, and resumes what it has yielded; a code */

/* pool.c: the host's CUDA calls that pools.go needs, on the calling thread. */
HIDDEN int pool_cuda_malloc(void **pointer, size_t size, int device);
HIDDEN int pool_cuda_free(uintptr_t pointer, int device);
HIDDEN bool pool_is_captured(uintptr_t stream);

#endif
