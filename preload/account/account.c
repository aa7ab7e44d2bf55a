/* account counts, under TMS_ACCOUNT, the device memory that CUDA itself gives to each library of the program. The
 * caller's return address names the library (caller.c). The engine counts pausable memory; nothing here counts what
 * CUDA takes for itself (contexts, modules, local memory, arrays).
 *
 * The lock is never held during a CUDA call. A free is noted before the call, because another thread may get the
 * address at once, and noted again if the call fails; an allocation is noted after the call. For memory made by
 * cuMemCreate, preload/shared.c counts handles and mappings. A pool is noted when it is first used, and account.go asks
 * for its size.
 *
 * A forked child has no account: CUDA does not survive fork. */
#define _GNU_SOURCE
#include "account.h"
#include "forward.h"
#include "region.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OWNERS_MAX = ACCOUNT_OWNERS_MAX, POOLS_MAX = ACCOUNT_POOLS_MAX };

HIDDEN bool account_on;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_mark process; /* the one with the memory; a child that no fork handler prepared notes nothing */
static char program[256];	 /* the name of its file, without folders */

/* lock guards everything below. */
static bool started;
static struct account_owner owners[OWNERS_MAX];
static size_t owner_count;
static struct table allocations;
static struct account_pool pools[POOLS_MAX];
static size_t pool_count;
static uint64_t uncounted;
static _Atomic int readers; /* of pools, which stay until these are done; raised under the lock, lowered also without */

/* Reports whether there is an account, and then holds lock. */
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

/* Returns the library's name, interned, or NULL if memory is short. Do not call it with the lock held, because it asks
 * the loader. */
static const char *library_of(const void *caller)
{
	char name[CALLER_NAME_SIZE];
	if (!caller_library(caller, name))
		return region_intern("unknown"); /* code that was made at run time */
	return region_intern(*name ? name : program);
}

/* Returns NULL where there are too many. */
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

/* Replaces a block at the same address whose free went unseen. */
static void put(struct block block)
{
	struct block before = table_take(&allocations, block.address);
	if (before.address)
		subtract(&before);
	if (block.owner && allocations.live < BLOCKS_MAX && table_put(&allocations, block))
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
		put((struct block){.address = address, .size = size, .owner = owner_of(library, device),
				   .context = context});
	else
		uncounted++;
	pthread_mutex_unlock(&lock);
}

HIDDEN struct block account_free(const void *address)
{
	struct block block = {0};
	if (!address || !begin())
		return block;
	block = table_take(&allocations, address);
	if (block.address)
		subtract(&block);
	pthread_mutex_unlock(&lock);
	return block;
}

HIDDEN void account_unfree(struct block block)
{
	if (!block.address || !begin())
		return;
	put(block);
	pthread_mutex_unlock(&lock);
}

HIDDEN void account_context_gone(const void *context)
{
	if (!context || !begin())
		return;
	for (size_t i = 0; i < allocations.slot_count;) {
		struct block *block = &allocations.slots[i];
		if (!block->address || block->context != context) {
			i++;
			continue;
		}
		subtract(block);
		table_take(&allocations, block->address); /* another block may move here, so the slot is looked at again */
	}
	pthread_mutex_unlock(&lock);
}

/* ---- memory by handles, which preload/shared.c reports */

HIDDEN struct account_owner *account_owner_of(const void *caller, int device)
{
	struct account_owner *owner = NULL;
	const char *library = library_of(caller);
	if (begin()) {
		owner = owner_of(library, device);
		uncounted += !owner;
		pthread_mutex_unlock(&lock);
	}
	return owner;
}

HIDDEN void account_add(const struct block *block, bool has_room)
{
	if (!block->owner || !begin())
		return;
	if (has_room)
		add(block);
	else
		uncounted++;
	pthread_mutex_unlock(&lock);
}

HIDDEN void account_subtract(const struct block *block)
{
	if (!block->owner || !begin())
		return;
	subtract(block);
	pthread_mutex_unlock(&lock);
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
	pthread_mutex_unlock(&lock);
	const char *library = known ? NULL : library_of(caller);
	if (!library || !begin())
		return;
	for (size_t i = 0; i < pool_count && !known; i++)
		known = pools[i].pool == pool;
	if (!known && pool_count < POOLS_MAX)
		pools[pool_count++] = (struct account_pool){pool, library, device};
	else if (!known)
		uncounted++;
	pthread_mutex_unlock(&lock);
}

/* Takes out a pool, or with NULL all pools of a device, and waits until no thread is asking for their sizes. */
static void take_pools(const void *pool, int device)
{
	if (!begin())
		return;
	for (size_t i = 0; i < pool_count;) {
		if (pool ? pools[i].pool != pool : pools[i].device != device) {
			i++;
			continue;
		}
		pools[i] = pools[--pool_count];
	}
	pthread_mutex_unlock(&lock);
	while (atomic_load(&readers) > 0)
		sched_yield();
}

/* A reset of the device ends its pools. A pool that is left, also by a destruction that fails, is noted again when it
 * is used. */
HIDDEN void account_device_resets(int device)
{
	take_pools(NULL, device);
}

HIDDEN void account_pool_gone(const void *pool)
{
	if (unlikely(account_on) && pool)
		take_pools(pool, 0);
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
	pthread_mutex_unlock(&lock);
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
	pthread_mutex_unlock(&lock);
	return count;
}

HIDDEN void account_pools_end(void)
{
	atomic_fetch_sub(&readers, 1);
}

FORK_WAITS_FOR(lock)

static void after_fork_in_child(void)
{
	owner_count = pool_count = 0;
	uncounted = 0;
	atomic_store(&readers, 0);
	table_clear(&allocations);
	fork_mark_set(&process);
	pthread_mutex_unlock(&lock);
}

AT_LOAD HIDDEN void account_load(void)
{
	if (!region_config.account)
		return;
	static char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
	path[length > 0 ? length : 0] = 0;
	const char *slash = strrchr(path, '/');
	snprintf(program, sizeof program, "%s", slash ? slash + 1 : "unknown");
	account_on = true;
	fork_notify(before_fork, after_fork_in_parent, after_fork_in_child);
}
