/* account counts what CUDA itself gives to each library of the program. It knows no regions and no segments. */
#ifndef TMS_ACCOUNT_H
#define TMS_ACCOUNT_H

#include "../goruntime/goruntime.h"

/* caller.c. caller_library finds the base name of the file that a call comes from, "" for the program, and returns
 * false if there is no such file. excluded_caller reports whether TMS_EXCLUDE names that library. */
enum { CALLER_NAME_SIZE = 256 };
HIDDEN void caller_load(void); /* at load */
HIDDEN bool caller_library(const void *address, char name[CALLER_NAME_SIZE]);
HIDDEN bool excluded_caller(const void *address);

/* table.c: the blocks of account.c and preload/shared.c by address. */
struct account_owner;
struct block {
	const void *address; /* or the memory's handle; NULL in a free slot */
	size_t size;
	union {
		struct account_owner *owner; /* NULL if not counted */
		uint64_t handle; /* that is mapped there */
	};
	union {
		const void *context;
		struct { /* for a handle */
			uint32_t references, mappings : 30, shared : 2; /* 0 if no other process shares it */
		};
	};
};
struct table {
	struct block *slots;
	size_t slot_count, live;
};
enum { BLOCKS_MAX = 1 << 19 }; /* in one table */
HIDDEN struct block *table_find(const struct table *table, const void *address); /* or NULL; valid until a change */
/* Replaces a block at the same address. Returns false if memory is short. */
HIDDEN bool table_put(struct table *table, struct block block);
HIDDEN struct block table_take(struct table *table, const void *address); /* its address is NULL if there was none */
HIDDEN void table_clear(struct table *table);

/* account.c, which does nothing without TMS_ACCOUNT. */
extern bool account_on HIDDEN; /* from load on */
enum { ACCOUNT_OWNERS_MAX = 512, ACCOUNT_POOLS_MAX = 64 };
struct account_owner {
	const char *library; /* its file's name; interned */
	int device;
	uint64_t bytes, allocations;
};
struct account_pool {
	void *pool; /* CUmemoryPool */
	const char *library; /* the first that took memory from it; interned */
	int device;
};
HIDDEN void account_load(void);
HIDDEN void account_malloc(const void *address, size_t size, const void *caller); /* after the allocation */
HIDDEN struct block account_free(const void *address);				  /* before the free */
HIDDEN void account_unfree(struct block block);					  /* after a free that failed */
/* Call these after a context was destroyed, and before a device is reset. */
HIDDEN void account_context_gone(const void *context);
HIDDEN void account_pool_gone(const void *pool); /* it is about to be destroyed */
HIDDEN void account_device_resets(int device);
/* For memory by handle, which has an owner before it is counted. Returns NULL if the memory is not counted. */
HIDDEN struct account_owner *account_owner_of(const void *caller, int device);
HIDDEN void account_add(const struct block *block, bool has_room);
HIDDEN void account_subtract(const struct block *block);
/* Call this before the pool gives memory. A pool of NULL is the device's current pool. */
HIDDEN void account_pool(void *pool, const void *caller);
/* All, and how many allocations found no room. Between begin and end none of the listed pools is destroyed. */
HIDDEN size_t account_owners(struct account_owner out[ACCOUNT_OWNERS_MAX], uint64_t *not_counted);
HIDDEN size_t account_pools_begin(struct account_pool out[ACCOUNT_POOLS_MAX]);
HIDDEN void account_pools_end(void);

#endif
