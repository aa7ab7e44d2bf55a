/* account counts, under TMS_ACCOUNT, the device memory that CUDA itself gives to each library of the program. The
 * caller's return address names the library (caller.c). The engine counts pausable memory; nothing here counts what
 * CUDA takes for itself (contexts, modules, local memory, arrays).
 *
 * A free is noted before the call, because another thread may get the address at once, and noted again if the call
 * fails; an allocation is noted after the call. A pool is noted when it is first used, and account.go asks for its
 * size. */
#define _GNU_SOURCE
#include "parts.h"
#include "forward.h"
#include "region.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char program[256]; /* the name of its file, without folders */

static struct owner owners[OWNERS_MAX];
static size_t owner_count;
static struct counted_pool pools[POOLS_MAX];
static size_t pool_count;
static uint64_t uncounted;
static _Atomic int readers; /* of pools, which stay until these are done; raised under the lock, lowered also without */

HIDDEN const char *account_library(const void *caller)
{
	char name[CALLER_NAME_SIZE];
	if (!caller_library(caller, name))
		return region_intern("unknown"); /* code that was made at run time */
	return region_intern(*name ? name : program);
}

HIDDEN void account_uncounted(void)
{
	uncounted++;
}

HIDDEN struct owner *account_owner(const char *library, int device)
{
	for (size_t i = 0; i < owner_count; i++)
		if (owners[i].library == library && owners[i].device == device)
			return &owners[i];
	if (!library || owner_count == OWNERS_MAX) {
		uncounted++;
		return NULL;
	}
	owners[owner_count] = (struct owner){.library = library, .device = device};
	return &owners[owner_count++];
}

HIDDEN struct block account_take(enum block_kind kind, const void *address)
{
	struct block taken = blocks_take(kind, address);
	if (taken.owner) {
		taken.owner->bytes -= taken.size;
		taken.owner->allocations--;
	}
	return taken;
}

HIDDEN bool account_put(struct block block)
{
	account_take(block.kind, block.address);
	bool has_room = blocks_put(block);
	if (block.owner && has_room) {
		block.owner->bytes += block.size;
		block.owner->allocations++;
	} else if (block.owner) {
		uncounted++;
	}
	return has_room;
}

HIDDEN void account_take_context(const void *context)
{
	struct block *block;
	for (size_t i = 0; (block = blocks_next(ALLOCATION, &i));)
		if (block->context == context)
			account_take(ALLOCATION, block->address); /* another may move here, so the slot is looked at again */
		else
			i++;
}

/* ---- pools */

static bool is_known(const void *pool)
{
	for (size_t i = 0; i < pool_count; i++)
		if (pools[i].pool == pool)
			return true;
	return false;
}

HIDDEN void watch_pool_used(void *pool, const void *caller)
{
	int device = 0;
	if (!watch_is_on(WATCH_COUNTS) || forward_cuCtxGetDevice(&device) != SUCCESS ||
	    (!pool && forward_cuDeviceGetMemPool(&pool, device) != SUCCESS))
		return;
	if (!watch_begin(WATCH_COUNTS))
		return;
	bool known = is_known(pool);
	watch_end();
	const char *library = known ? NULL : account_library(caller);
	if (!library || !watch_begin(WATCH_COUNTS))
		return;
	known = is_known(pool);
	if (!known && pool_count < POOLS_MAX)
		pools[pool_count++] = (struct counted_pool){pool, library, device};
	else if (!known)
		uncounted++;
	watch_end();
}

/* Takes out a pool, or with NULL all pools of a device, and waits until no thread is asking for their sizes. */
static void take_pools(const void *pool, int device)
{
	if (!watch_begin(WATCH_COUNTS))
		return;
	for (size_t i = 0; i < pool_count;) {
		if (pool ? pools[i].pool != pool : pools[i].device != device) {
			i++;
			continue;
		}
		pools[i] = pools[--pool_count];
	}
	watch_end();
	while (atomic_load(&readers) > 0)
		sched_yield();
}

/* A reset of the device ends its pools. A pool that is left, also by a destruction that fails, is noted again when it
 * is used. */
HIDDEN void watch_device_resets(int device)
{
	take_pools(NULL, device);
}

HIDDEN void watch_pool_ends(const void *pool)
{
	if (pool)
		take_pools(pool, 0);
}

/* ---- what account.go reads */

HIDDEN size_t account_owners(struct owner out[OWNERS_MAX], uint64_t *not_counted)
{
	size_t count = 0;
	*not_counted = 0;
	if (!watch_begin(WATCH_COUNTS))
		return 0;
	for (size_t i = 0; i < owner_count; i++)
		if (owners[i].allocations)
			out[count++] = owners[i];
	*not_counted = uncounted;
	watch_end();
	return count;
}

HIDDEN size_t account_pools_begin(struct counted_pool out[POOLS_MAX])
{
	if (!watch_begin(WATCH_COUNTS))
		return 0;
	atomic_fetch_add(&readers, 1);
	size_t count = pool_count;
	memcpy(out, pools, count * sizeof *out);
	watch_end();
	return count;
}

HIDDEN void account_pools_end(void)
{
	atomic_fetch_sub(&readers, 1);
}

/* CUDA does not survive fork, so the parent's memory is not the child's. */
static void forget_in_child(void)
{
	blocks_clear();
	owner_count = pool_count = 0;
	uncounted = 0;
	atomic_store(&readers, 0);
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
	watch_turn(WATCH_COUNTS, true);
	watch_follow_forks(forget_in_child);
}
