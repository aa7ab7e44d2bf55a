/* watch sees each allocation of the process and changes none. It writes recordings (recording.c), counts what CUDA gives
 * to each library (account.c), follows memory by handle (handles.c), and notes what the driver's checkpoint cannot take
 * (obstacles.c). preload tells it of each call, before or after CUDA has it.
 *
 * One lock (lock.c) guards all of this, and one table has all blocks (blocks.c). The host's threads and the library's
 * own take the lock for a moment: never during a call of CUDA or of Go, but while a recording's file is opened. A fork
 * waits for the lock, and the child has no blocks. A thread that ends leaves nothing here. A host's handler that
 * allocates while its thread has the lock would wait for itself, as it would in CUDA. */
#ifndef TMS_WATCH_H
#define TMS_WATCH_H

#include "../goruntime/goruntime.h"

/* lock.c: what is watched in this process. */
enum { WATCH_RECORDS = 1, WATCH_COUNTS = 2, WATCH_HANDLES = 4 }; /* a recording, the account, memory by handle */
#define WATCH_CALLS (WATCH_RECORDS | WATCH_COUNTS) /* either looks at each allocation and free */
extern _Atomic unsigned watch_what HIDDEN;
static inline bool watch_is_on(unsigned what)
{
	return atomic_load_explicit(&watch_what, memory_order_relaxed) & what;
}
HIDDEN void watch_load(void); /* at load */

/* A call that allocates. */
struct watch_allocation {
	int code;
	const void *address; /* NULL if the call failed */
	size_t size;	     /* as the program asked */
	const void *stream, *pool;
	bool is_pausable;   /* the engine made it */
	bool is_block;	    /* of a pool of this library, which has it from memory that it keeps */
	const void *caller; /* of CUDA's own memory, which the account counts; else NULL */
	size_t bytes;	    /* for the account, with rows as CUDA pads them */
};
HIDDEN void watch_allocated(const struct watch_allocation *allocation); /* after the call */

/* A free is noted before it happens, while no other thread can get the address, and taken back if it fails. */
#define WATCH_SAME_STREAM ((void *)-1) /* the allocation's */
struct watch_free {
	const void *address;
	size_t size;
	void *owner;
	const void *context; /* of the block that the account had */
};
HIDDEN struct watch_free watch_freeing(const void *address, const void *stream);
HIDDEN void watch_freed(int code, const struct watch_free *noted);

/* Call these before the pool gives memory, and before it is destroyed. A pool of NULL is the device's current pool. */
HIDDEN void watch_pool_used(void *pool, const void *caller);
HIDDEN void watch_pool_ends(const void *pool);
HIDDEN void watch_own_pool_ended(const void *pool); /* a pool of this library */
/* Call these after a context was destroyed, and before a device is reset. */
HIDDEN void watch_context_ended(const void *context);
HIDDEN void watch_device_resets(int device);

/* handles.c: the driver's functions for memory by handle, from the first on that the account counts or that other
 * processes could have. */
HIDDEN void handles_created(uint64_t handle, size_t size, int device, const void *caller, bool exportable);
HIDDEN int handles_import(uint64_t *handle, void *shareable, int type);
HIDDEN int handles_export(void *shareable, uint64_t handle, int type, unsigned long long flags);
HIDDEN int handles_retain(uint64_t *handle, void *address);
HIDDEN int handles_release(uint64_t handle);
HIDDEN int handles_map(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags);
HIDDEN int handles_unmap(uintptr_t address, size_t size);

/* obstacles.c. obstacle_note notes a call that succeeded, after which the driver's checkpoint may lose the process, and
 * returns its code. obstacle_present returns a function whose memory cannot be checkpointed, or NULL. */
HIDDEN int obstacle_note(const char *call, int code);
HIDDEN const char *obstacle_present(void);

/* caller.c: reports whether TMS_EXCLUDE names the library that a return address lies in. */
HIDDEN bool caller_is_excluded(const void *address);

/* recording.c: what no call of CUDA tells. Tags are interned. A NULL tag means all tags, or none. */
enum recording_kind { RECORDING_PAUSE = 1, RECORDING_RESUME, RECORDING_MOVE, RECORDING_WAIT };
struct recording_operation {
	uint32_t number; /* not 0; the same at the begin and at the end, on whichever thread */
	bool over;	 /* else it begins, and all behind the tag is 0 */
	enum recording_kind kind;
	const char *tag;
	int code;
	uint64_t bytes, copied;		/* device memory given back or taken; contents */
	uint64_t took, waited, copying; /* nanoseconds: in all, and of these */
};
HIDDEN void recording_operation(const struct recording_operation *operation);
HIDDEN void recording_unmapped(uintptr_t address, uint64_t size);
HIDDEN void recording_changed(void); /* memory that is no allocation has changed: its tag's figures may have, too */
HIDDEN int recording_number(void); /* of the recording, from 1 on */

#endif
