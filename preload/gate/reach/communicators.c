/* communicators lists NCCL's communicators, and finds the ranks of one clique: communicators with the same unique id,
 * or that the same call made from the same communicator. nccl.c reports them. Of NCCL's functions it calls only
 * ncclCommCount and ncclCommUserRank. */
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

HIDDEN struct communicator communicators[COMMUNICATORS];
HIDDEN _Atomic size_t communicators_used;
HIDDEN struct comm_driver comm_driver;
TAKE(communicator)

static bool is(const struct communicator *c, const void *comm)
{
	return atomic_load_explicit(&c->state, memory_order_acquire) == LIVE && c->comm == comm;
}

/* Each collective asks, so the search begins where it last ended. */
HIDDEN struct communicator *comm_find(const void *comm)
{
	static _Atomic(struct communicator *) found[64];
	_Atomic(struct communicator *) *last = &found[(uintptr_t)comm * 0x9e3779b97f4a7c15 >> 58];
	struct communicator *there = atomic_load_explicit(last, memory_order_relaxed);
	if (likely(there) && likely(is(there, comm)))
		return there;
	for EACH (c, communicator)
		if (is(c, comm)) {
			atomic_store_explicit(last, c, memory_order_relaxed);
			return c;
		}
	return NULL;
}

/* FNV-1a */
static uint64_t hashed(uint64_t sum, const void *data, size_t size)
{
	const unsigned char *bytes = data;
	for (size_t i = 0; i < size; i++)
		sum = (sum ^ bytes[i]) * 0x100000001b3;
	return sum;
}
static const uint64_t nothing = 0xcbf29ce484222325;

HIDDEN uint64_t comm_clique(const struct nccl_id *ids, int count)
{
	return hashed(nothing, ids, (size_t)count * sizeof *ids);
}

HIDDEN uint64_t comm_clique_here(void)
{
	static _Atomic uint64_t cliques;
	uint64_t clique = atomic_fetch_add(&cliques, 1);
	return hashed(hashed(nothing, &cliques, sizeof(void *)), &clique, sizeof clique);
}

/* NCCL_COMM_BLOCKING overrides what the program says. */
static bool is_blocking(const struct nccl_config *config, const struct communicator *parent)
{
	const char *setting = getenv("NCCL_COMM_BLOCKING");
	if (setting && *setting)
		return *setting != '0';
	if (config && config->size >= sizeof *config && (config->blocking == 0 || config->blocking == 1))
		return config->blocking;
	return !parent || parent->blocking;
}

HIDDEN bool comm_blocks(const struct nccl_config *config, const void *parent)
{
	return is_blocking(config, parent ? comm_find(parent) : NULL);
}

/* Nothing is counted of a new communicator. */
static void clear_counts(struct communicator *c)
{
	struct pairs *pairs = atomic_load(&c->pairs);
	atomic_store(&c->collectives.begun, 0);
	atomic_store(&c->collectives.told, 0);
	atomic_store(&c->uncounted, false);
	if (pairs)
		memset(pairs->of, 0, (size_t)pairs->count * sizeof *pairs->of);
}

static void becomes_live(struct communicator *c)
{
	c->comm = *c->where;
	int ranks, rank;
	count_function *count = REAL(c->library, ncclCommCount, count_function);
	count_function *own = REAL(c->library, ncclCommUserRank, count_function);
	if (c->comm && c->ranks == 0 && c->blocking && count && count(c->comm, &ranks) == DONE)
		c->ranks = ranks; /* of communicators that were made from others */
	if (c->comm && c->rank < 0 && c->blocking && own && own(c->comm, &rank) == DONE)
		c->rank = rank;
	clear_counts(c);
	atomic_store_explicit(&c->state, c->comm ? LIVE : FREE, memory_order_release);
}

static void find_driver(void)
{
	if (atomic_load(&comm_driver.release))
		return;
	atomic_store(&comm_driver.retain, (int (*)(void **, int))reach_in_driver("cuDevicePrimaryCtxRetain"));
	atomic_store(&comm_driver.set_current, (int (*)(void *))reach_in_driver("cuCtxSetCurrent"));
	atomic_store(&comm_driver.release, (int (*)(int))reach_in_driver("cuDevicePrimaryCtxRelease_v2"));
}

/* A communicator that a call has made, or will have made at the end of its group. */
HIDDEN int comm_made(int code, struct library *library, void **where, uint64_t clique, int ranks, int rank,
		     bool blocking)
{
	if ((code != DONE && code != IN_PROGRESS) || !inside_is_outermost() || !where)
		return code;
	struct communicator *c = take_communicator();
	if (!c)
		return code;
	find_driver();
	c->where = where, c->thread = (pid_t)syscall(SYS_gettid), c->library = library, c->clique = clique;
	c->ranks = ranks, c->rank = rank, c->blocking = blocking && code == DONE, c->children = 0;
	atomic_store(&c->phase, RUNNING);
	atomic_store(&c->code, DONE);
	atomic_store(&c->together, false);
	if (inside_a_group())
		atomic_store(&c->state, WAITING);
	else
		becomes_live(c);
	return code;
}

HIDDEN int comm_made_of(int code, struct library *library, void *from, void **where, uint64_t what,
			const struct nccl_config *config)
{
	struct communicator *parent = comm_find(from);
	uint64_t clique = 0;
	if (parent) {
		uint32_t child = parent->children++;
		clique = hashed(hashed(hashed(nothing, &parent->clique, 8), &child, sizeof child), &what, sizeof what);
	}
	return comm_made(code, library, where, clique, 0, -1, is_blocking(config, parent));
}

/* A place is not reused while a thread of suspending.c still works on its communicator. */
HIDDEN void comm_goes(void *comm)
{
	struct communicator *c = comm_find(comm);
	int phase = c ? atomic_load(&c->phase) : RUNNING;
	if (phase == SUSPENDING || phase == RESUMING || phase == GIVEN_UP)
		c->comm = NULL;
	else if (c)
		atomic_store(&c->state, FREE);
}

/* The thread's outermost group has ended. */
HIDDEN void comm_group_ended(bool good, bool done)
{
	const pid_t self = (pid_t)syscall(SYS_gettid);
	for EACH (c, communicator) {
		if (atomic_load(&c->state) != WAITING || c->thread != self)
			continue;
		c->blocking = c->blocking && done;
		if (good)
			becomes_live(c);
		else
			atomic_store(&c->state, FREE);
	}
}

HIDDEN int comm_here(const struct communicator *c)
{
	int here = 0;
	for EACH (other, communicator)
		here += atomic_load(&other->state) == LIVE && other->library == c->library && other->clique == c->clique;
	return here;
}
