/* account keeps, where TMS_ACCOUNT asks for it, how much of each device CUDA itself has given to each library of the
 * program: what is not pausable. Whose an allocation is, the address says that its function returns to (caller.c).
 * Pausable memory is the engine's to count, and what CUDA takes without being asked by a function of ours (contexts,
 * modules, local memory, arrays) nobody's here.
 *
 * The lock is never held during a call of CUDA. So that an address can be another thread's at once, a free is noted
 * before it is made, and taken back when it failed; an allocation is noted after. Of memory made by cuMemCreate the
 * handles and mappings are counted: it goes with the last. A pool is noted once, and asked for its size by
 * account.go.
 *
 * A forked child has nothing of this: CUDA does not survive fork. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"
#include "region.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OWNERS_MAX = ACCOUNT_OWNERS_MAX, POOLS_MAX = ACCOUNT_POOLS_MAX, BLOCKS_MAX = 1 << 19 };

HIDDEN bool account_on;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_mark process; /* whose memory it is; a child that no handler prepared notes nothing */
static char program[256];	 /* the file that it is, without folders */

/* All below is guarded by lock. */
static bool started;
static struct account_owner owners[OWNERS_MAX];
static size_t owner_count;
static struct table allocations, handles, mappings;
static struct account_pool pools[POOLS_MAX];
static size_t pool_count;
static uint64_t uncounted;
static _Atomic int readers; /* of pools, which stay till they are done; changed with the lock, or to less without */

/* Whether there is an account; lock is then held. */
static bool begin(void)
{
	if (!account_on || fork_happened(&process))
		return false;
	pthread_mutex_lock(&lock);
	if (!started)
		fork_mark_set(&process);
	started = true;
	return true;
}

static void end(void)
{
	pthread_mutex_unlock(&lock);
}

/* The library's name, kept; NULL: no memory. Not to be called with the lock held: it asks the loader. */
static const char *library_of(const void *caller)
{
	char name[CALLER_NAME_SIZE];
	if (!caller_library(caller, name))
		return region_intern("unknown"); /* code that was made at run time */
	return region_intern(*name ? name : program);
}

/* NULL: there are too many. */
static struct account_owner *owner_of(const char *library, int device)
{
	for (size_t i = 0; i < owner_count; i++)
		if (owners[i].library == library && owners[i].device == device)
			return &owners[i];
	if (!library || owner_count == OWNERS_MAX)
		return NULL;
	owners[owner_count] = (struct account_owner){.library = library, .device = device};
	return &owners[owner_count++];
}

static void add(const struct block *block)
{
	block->owner->bytes += block->size;
	block->owner->allocations++;
}

static void subtract(const struct block *block)
{
	block->owner->bytes -= block->size;
	block->owner->allocations--;
}

/* In place of one of the address that went unseen. */
static void put(struct table *table, struct block block)
{
	struct block before = table_take(table, block.address);
	if (before.address)
		subtract(&before);
	if (block.owner && table->live < BLOCKS_MAX && table_put(table, block))
		add(&block);
	else
		uncounted++;
}

/* ---- allocations */

HIDDEN void account_malloc(const void *address, size_t size, const void *caller)
{
	void *context = NULL;
	int device = 0;
	if (!address || !account_on)
		return;
	bool known = forward_cuCtxGetDevice(&device) == SUCCESS && forward_cuCtxGetCurrent(&context) == SUCCESS;
	const char *library = library_of(caller);
	if (!begin())
		return;
	if (known)
		put(&allocations, (struct block){.address = address, .size = size, .owner = owner_of(library, device),
						 .context = context});
	else
		uncounted++;
	end();
}

HIDDEN struct block account_free(const void *address)
{
	struct block block = {0};
	if (!address || !begin())
		return block;
	block = table_take(&allocations, address);
	if (block.address)
		subtract(&block);
	end();
	return block;
}

HIDDEN void account_unfree(struct block block)
{
	if (!block.address || !begin())
		return;
	put(&allocations, block);
	end();
}

/* What belongs to a context that is about to be destroyed is marked as such: when it is gone the address of the context
 * can be another's. */
static const void *leaving(const void *context)
{
	return (const char *)context + 1;
}

HIDDEN void account_context_leaves(const void *context)
{
	if (!context || !begin())
		return;
	for (size_t i = 0; i < allocations.slot_count; i++)
		if (allocations.slots[i].address && allocations.slots[i].context == context)
			allocations.slots[i].context = leaving(context);
	end();
}

HIDDEN void account_context_left(const void *context, bool gone)
{
	if (!context || !begin())
		return;
	for (size_t i = 0; i < allocations.slot_count;) {
		struct block *block = &allocations.slots[i];
		if (!block->address || block->context != leaving(context)) {
			i++;
		} else if (gone) {
			subtract(block);
			table_take(&allocations, block->address); /* another may move here: it is looked at again */
		} else {
			block->context = context;
		}
	}
	end();
}

/* ---- memory by handles */

static const void *key(uint64_t handle)
{
	return (const void *)(uintptr_t)handle;
}

/* Takes out what nothing holds any more. */
static struct block settle(struct block *handle)
{
	if (handle->references || handle->mappings)
		return (struct block){0};
	subtract(handle);
	return table_take(&handles, handle->address);
}

HIDDEN int account_create(uint64_t *handle, size_t size, const void *prop, unsigned long long flags, int device,
			  const void *caller)
{
	int code = forward_cuMemCreate(handle, size, prop, flags);
	if (code != SUCCESS || device < 0)
		return code;
	const char *library = library_of(caller);
	if (begin()) {
		put(&handles, (struct block){.address = key(*handle), .size = size, .owner = owner_of(library, device),
					     .references = 1});
		end();
	}
	return code;
}

HIDDEN int account_retain(uint64_t *handle, void *address)
{
	int code = forward_cuMemRetainAllocationHandle(handle, address);
	if (code == SUCCESS && begin()) {
		struct block *found = table_find(&handles, key(*handle));
		if (found)
			found->references++;
		end();
	}
	return code;
}

HIDDEN int account_release(uint64_t handle)
{
	struct block taken = {0};
	bool known = false;
	if (begin()) {
		struct block *found = table_find(&handles, key(handle));
		if ((known = found && found->references)) {
			found->references--;
			taken = settle(found);
		}
		end();
	}
	int code = forward_cuMemRelease(handle);
	if (code != SUCCESS && known && begin()) {
		if (taken.address)
			put(&handles, taken);
		struct block *found = table_find(&handles, key(handle));
		if (found)
			found->references++;
		end();
	}
	return code;
}

/* A mapping of it has gone. Returns the handle's if it goes with that. */
static struct block unmapped(struct block mapping)
{
	struct block *handle = table_find(&handles, key(mapping.handle));
	if (!handle || !handle->mappings)
		return (struct block){0};
	handle->mappings--;
	return settle(handle);
}

/* Whether there is room. In place of one there that went unseen. */
static bool mapped(struct block mapping)
{
	struct block before = table_take(&mappings, mapping.address);
	if (before.address)
		unmapped(before);
	return mappings.live < BLOCKS_MAX && table_put(&mappings, mapping);
}

/* The handle is held by the mapping before it is made: another thread may release it as soon as it is. */
HIDDEN int account_map(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	struct block mapping = {.address = (const void *)address, .size = size, .handle = handle, .mappings = 1};
	bool known = false;
	if (begin()) {
		struct block *found = table_find(&handles, key(handle));
		if ((known = found))
			found->mappings++;
		end();
	}
	int code = forward_cuMemMap(address, size, offset, handle, flags);
	if (known && begin()) {
		if (code != SUCCESS || !mapped(mapping)) /* one without room counts until the handle is released */
			unmapped(mapping);
		end();
	}
	return code;
}

/* What an unmap takes out, for when it fails: of each mapping, and of each handle that goes with it. */
struct taken {
	struct block *blocks;
	size_t count, room;
	struct block few[8];
};

/* What finds no room is not put back when the unmap fails. A mapping's mappings is 1, a handle's then 0. */
static void keep(struct taken *taken, struct block block)
{
	if (taken->count == taken->room) {
		struct block *more = malloc(2 * taken->room * sizeof *more);
		if (!more)
			return;
		memcpy(more, taken->blocks, taken->count * sizeof *more);
		if (taken->blocks != taken->few)
			free(taken->blocks);
		taken->blocks = more;
		taken->room *= 2;
	}
	taken->blocks[taken->count++] = block;
}

HIDDEN int account_unmap(uintptr_t address, size_t size)
{
	struct taken taken = {.blocks = taken.few, .room = sizeof taken.few / sizeof *taken.few};
	if (begin()) {
		for (uintptr_t at = address; at - address < size;) { /* several, side by side */
			struct block mapping = table_take(&mappings, (const void *)at), handle;
			if (!mapping.address)
				break;
			keep(&taken, mapping);
			handle = unmapped(mapping);
			if (handle.address)
				keep(&taken, handle);
			at += mapping.size;
		}
		end();
	}
	int code = forward_cuMemUnmap(address, size);
	if (code != SUCCESS && taken.count && begin()) {
		for (size_t i = taken.count; i-- > 0;) { /* a handle before the mapping that it went with */
			struct block block = taken.blocks[i], *handle;
			if (!block.mappings)
				put(&handles, block);
			else if (mapped(block) && (handle = table_find(&handles, key(block.handle))))
				handle->mappings++;
		}
		end();
	}
	if (taken.blocks != taken.few)
		free(taken.blocks);
	return code;
}

/* ---- pools */

HIDDEN void account_pool(void *pool, const void *caller)
{
	int device = 0;
	if (!account_on || forward_cuCtxGetDevice(&device) != SUCCESS ||
	    (!pool && forward_cuDeviceGetMemPool(&pool, device) != SUCCESS))
		return;
	bool known = false;
	if (!begin())
		return;
	for (size_t i = 0; i < pool_count && !known; i++)
		known = pools[i].pool == pool;
	end();
	const char *library = known ? NULL : library_of(caller);
	if (!library || !begin())
		return;
	for (size_t i = 0; i < pool_count && !known; i++)
		known = pools[i].pool == pool;
	if (!known && pool_count < POOLS_MAX)
		pools[pool_count++] = (struct account_pool){pool, library, device};
	else if (!known)
		uncounted++;
	end();
}

/* Takes out what fits, to taken where that is not NULL, and waits until nobody asks for its size. */
static void take_pools(const void *pool, int device, struct account_pool *taken)
{
	if (!begin())
		return;
	for (size_t i = 0; i < pool_count;) {
		if (pool ? pools[i].pool != pool : pools[i].device != device) {
			i++;
			continue;
		}
		if (taken)
			*taken = pools[i];
		pools[i] = pools[--pool_count];
	}
	end();
	while (atomic_load(&readers) > 0)
		sched_yield();
}

HIDDEN int account_destroy_pool(void *pool, int (*destroy)(void *))
{
	struct account_pool taken = {0};
	if (pool)
		take_pools(pool, 0, &taken);
	int code = destroy(pool);
	if (code != SUCCESS && taken.pool && begin()) {
		if (pool_count < POOLS_MAX)
			pools[pool_count++] = taken;
		end();
	}
	return code;
}

/* A reset of the device ends its pools. Those that it leaves are noted again when they are used. */
HIDDEN void account_device_resets(int device)
{
	take_pools(NULL, device, NULL);
}

EXPORT int cudaMemPoolDestroy(void *pool)
{
	if (likely(!account_on))
		return forward_cudaMemPoolDestroy(pool);
	return account_destroy_pool(pool, forward_cudaMemPoolDestroy);
}

EXPORT int cuMemPoolDestroy(void *pool)
{
	if (likely(!account_on))
		return forward_cuMemPoolDestroy(pool);
	return account_destroy_pool(pool, forward_cuMemPoolDestroy);
}

/* ---- what account.go reads */

HIDDEN size_t account_owners(struct account_owner out[ACCOUNT_OWNERS_MAX], uint64_t *not_counted)
{
	size_t count = 0;
	*not_counted = 0;
	if (!begin())
		return 0;
	for (size_t i = 0; i < owner_count; i++)
		if (owners[i].allocations)
			out[count++] = owners[i];
	*not_counted = uncounted;
	end();
	return count;
}

HIDDEN size_t account_pools_begin(struct account_pool out[ACCOUNT_POOLS_MAX])
{
	size_t count = 0;
	if (!begin())
		return 0;
	atomic_fetch_add(&readers, 1);
	memcpy(out, pools, pool_count * sizeof *out);
	count = pool_count;
	end();
	return count;
}

HIDDEN void account_pools_end(void)
{
	atomic_fetch_sub(&readers, 1);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
	owner_count = pool_count = 0;
	uncounted = 0;
	atomic_store(&readers, 0);
	table_clear(&allocations);
	table_clear(&handles);
	table_clear(&mappings);
	fork_mark_set(&process);
	pthread_mutex_unlock(&lock);
}

AT_LOAD HIDDEN void account_load(void)
{
	if (!region_config.account)
		return;
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
	path[length > 0 ? length : 0] = 0;
	const char *slash = strrchr(path, '/');
	snprintf(program, sizeof program, "%s", slash ? slash + 1 : "unknown");
	account_on = true;
	atomic_store(&alloc_watched, true);
	atomic_store(&mapping_watched, true);
	fork_notify(before_fork, after_fork_in_parent, after_fork_in_child);
}
