/* parts has what the files of watch use from each other. The lock is held in all functions below, unless their comment
 * says otherwise. */
#ifndef TMS_WATCH_PARTS_H
#define TMS_WATCH_PARTS_H

#include "watch.h"

/* lock.c. watch_begin reports whether one of these is watched in this process, and then takes the lock. */
HIDDEN bool watch_begin(unsigned what);
HIDDEN void watch_begin_always(void);
HIDDEN void watch_end(void);
HIDDEN void watch_turn(unsigned what, bool on); /* without the lock or with it */
/* Forks wait for the lock from then on, and a child calls in_child, while it has one thread. Call it without the lock. */
HIDDEN void watch_follow_forks(void (*in_child)(void));

/* blocks.c: a block is an allocation, a handle of memory, or a mapping of such memory. */
struct owner;
enum block_kind { NO_BLOCK, ALLOCATION, HANDLE, MAPPING };
struct block {
	const void *address; /* or the memory's handle */
	size_t size : 62, kind : 2;
	struct owner *owner; /* NULL if not counted */
	union {
		const void *context; /* of an allocation */
		uint64_t handle;     /* that is mapped there */
		struct {
			uint32_t references, mappings : 30, shared : 2; /* of a handle; enum shared */
		};
	};
};
HIDDEN struct block *blocks_find(enum block_kind kind, const void *address); /* or NULL; valid until a change */
HIDDEN bool blocks_put(struct block block); /* in place of one at the same address; false if there is no room */
HIDDEN struct block blocks_take(enum block_kind kind, const void *address); /* NO_BLOCK if there was none */
/* The first block of a kind from a slot on, or NULL. *slot becomes its slot, where another may lie once it is taken. */
HIDDEN struct block *blocks_next(enum block_kind kind, size_t *slot);
HIDDEN void blocks_clear(void);

/* account.c: an owner is a library on a device. */
enum { OWNERS_MAX = 512, POOLS_MAX = 64 };
struct owner {
	const char *library; /* its file's name; interned */
	int device;
	uint64_t bytes, allocations;
};
struct counted_pool {
	void *pool; /* CUmemoryPool */
	const char *library; /* the first that took memory from it; interned */
	int device;
};
/* The library's name, interned, or NULL if memory is short. Call it without the lock, because it asks the loader. */
HIDDEN const char *account_library(const void *caller);
HIDDEN struct owner *account_owner(const char *library, int device); /* NULL, which is uncounted, if there are too many */
HIDDEN void account_uncounted(void);
/* These keep blocks and count those that have an owner. account_put replaces a block whose end went unseen. */
HIDDEN bool account_put(struct block block);
HIDDEN struct block account_take(enum block_kind kind, const void *address);
HIDDEN void account_take_context(const void *context);
HIDDEN void account_load(void);
/* For account.go, without the lock: all, and how many allocations found no room. Between begin and end none of the
 * listed pools is destroyed. */
HIDDEN size_t account_owners(struct owner out[OWNERS_MAX], uint64_t *not_counted);
HIDDEN size_t account_pools_begin(struct counted_pool out[POOLS_MAX]);
HIDDEN void account_pools_end(void);

/* handles.c, obstacles.c, without the lock: a function by which present memory is shared, or another that was called,
 * after which the driver's checkpoint may lose the process; or NULL. */
HIDDEN const char *handles_obstacle(void);
HIDDEN const char *obstacle_noted(void);

/* caller.c: finds the base name of the file that a call comes from, "" for the program, and returns false if there is no
 * such file. Call it without the lock. */
enum { CALLER_NAME_SIZE = 256 };
HIDDEN bool caller_library(const void *address, char name[CALLER_NAME_SIZE]);
HIDDEN void caller_load(void);

/* recording.c: each reports whether there is a recording. recording_sample must follow, without the lock, except where
 * another thread may wait for memory that is about to be freed. */
HIDDEN bool recording_allocated(const struct watch_allocation *allocation, int device, const char *tag);
HIDDEN bool recording_freeing(const void *address, const void *stream);
HIDDEN bool recording_not_freed(const void *address);
HIDDEN bool recording_pool_ended(const void *pool);
HIDDEN void recording_sample(void);
HIDDEN void recording_load(void);
/* For recording.go, without the lock. */
struct recording_figures { /* for a tag on a device, in bytes */
	int device;
	const char *tag;
	uint64_t live, physical, host, disk, peer;
};
HIDDEN void recording_device(int device, const char *uuid);
HIDDEN void recording_figures(const struct recording_figures *figures);
HIDDEN void recording_existing(int device, uintptr_t address, uint64_t size, const char *tag, bool earlier, bool mapped);
HIDDEN void recording_sample_after(uint64_t pause); /* nanoseconds, until tmsRecordFigures is called again */
HIDDEN const char *recording_start(const char *file); /* for tms record; NULL, or why not */
HIDDEN const char *recording_end(int recording);      /* NULL, or why it had ended before */

#endif
