/* sequence brings the ranks of a job to a consistent cut: a point at which all ranks have begun the same NCCL
 * operations. It counts what the ranks of a communicator count alike: its collectives, and what one rank sends to
 * another. Each rank has a number for each such sequence: how many operations it has begun. A collective that only some
 * ranks have begun keeps devices from becoming idle. Where all ranks have the same numbers nothing is open. To bring
 * ranks there, internal/group/align.go sets targets: a thread that would begin an operation beyond a target waits, and the
 * other ranks catch up. Operations that are captured into a graph do not run and are not counted, nor are launches of
 * the graph, nor one-sided operations (ncclPutSignal).
 *
 * A thread that waits has begun nothing. It is not inside NCCL, unless its group has something in it already: a group
 * passes as one, with its first operation. Targets hold only while a command aligns ranks, only in the process where
 * they were set, and only for the sequences that the last targets named.
 *
 * An operation counts first and looks for a target then; the setter of targets sets them first and looks at the
 * numbers then. So it sees each operation that has passed. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic pid_t process;	/* the process that has targets, or 0 */
static _Atomic uint32_t number; /* of these targets; threads that wait sleep on it */
static _Atomic int launching;	/* operations and groups that have begun and are not launched yet */
static _Atomic bool captured;

static _Atomic uint64_t groups;
static __thread uint64_t group __attribute__((tls_model("initial-exec"))); /* the group that has begun, or 0 */

/* A communicator's pairs are made when it first needs them, and stay with its place, because others may be reading
 * them. Those that are too few for the next communicator there are leaked. */
static struct pair *pairs_of(struct communicator *c)
{
	struct pairs *pairs = atomic_load_explicit(&c->pairs, memory_order_acquire);
	if (likely(pairs) && pairs->count >= c->ranks)
		return pairs->of;
	const int error = errno;
	const size_t size = sizeof *pairs + (size_t)c->ranks * sizeof *pairs->of;
	struct pairs *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED) {
		atomic_store(&c->uncounted, true);
		errno = error;
		return NULL;
	}
	made->count = c->ranks;
	if (atomic_compare_exchange_strong(&c->pairs, &pairs, made))
		return made->of;
	munmap(made, size);
	return pairs->of;
}

/* Returns NULL for a call that is not counted. */
static struct sequence *sequence_of(struct communicator *c, enum counted counted, int peer)
{
	if (counted == COLLECTIVE)
		return &c->collectives;
	if (c->rank < 0)
		atomic_store(&c->uncounted, true);
	if (c->rank < 0 || peer < 0 || peer >= c->ranks || peer == c->rank)
		return NULL;
	struct pair *pairs = pairs_of(c);
	if (!pairs)
		return NULL;
	return counted == SENT ? &pairs[peer].sent : &pairs[peer].received;
}

/* Reports whether these targets, or the next targets already, name the sequence. */
static bool has_target(const struct sequence *s, uint32_t now)
{
	return atomic_load(&process) == (pid_t)syscall(SYS_getpid) && (int32_t)(atomic_load(&s->told) - now) >= 0;
}

/* Counts an operation, and waits while the target forbids it. Returns false if the communicator was destroyed during
 * the wait. */
static bool pass(struct sequence *s, const struct communicator *c, const void *comm)
{
	for (;;) {
		const uint32_t now = atomic_load_explicit(&number, memory_order_relaxed);
		atomic_fetch_add(&launching, 1);
		uint64_t begun = atomic_fetch_add(&s->begun, 1) + 1;
		if (likely(!atomic_load(&process)) || !has_target(s, now) || begun <= atomic_load(&s->target))
			return true;
		atomic_fetch_sub(&s->begun, 1);
		atomic_fetch_sub(&launching, 1);
		atomic_store(&s->wanted, now);
		const int error = errno;
		const bool out = inside_step_out();
		syscall(SYS_futex, &number, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
		if (out)
			inside_step_in(false);
		errno = error;
		if (comm_find(comm) != c)
			return false;
	}
}

HIDDEN bool sequence_begin(void *comm, enum counted counted, int peer, struct sequence **of)
{
	struct communicator *c = inside_is_outermost() && counted != UNCOUNTED ? comm_find(comm) : NULL;
	struct sequence *s = c ? sequence_of(c, counted, peer) : NULL;
	*of = s;
	if (!s)
		return true;
	if (group)
		atomic_fetch_add(&s->begun, 1);
	else if (!pass(s, c, comm))
		return false;
	if (inside_a_group()) {
		if (!group)
			group = atomic_fetch_add(&groups, 1) + 1;
		atomic_store_explicit(&c->group, group, memory_order_relaxed);
	}
	return true;
}

HIDDEN void sequence_ended(struct sequence *s, bool good)
{
	if (s && !good)
		atomic_fetch_sub(&s->begun, 1);
	if (s && !group)
		atomic_fetch_sub(&launching, 1);
}

/* If a group was not launched, this process does not know what the other ranks did with their groups. */
HIDDEN void sequence_group_ended(bool launched)
{
	if (!group)
		return;
	for EACH (c, communicator)
		if (!launched && atomic_load_explicit(&c->group, memory_order_relaxed) == group)
			atomic_store(&c->uncounted, true);
	group = 0;
	atomic_fetch_sub(&launching, 1);
}

HIDDEN void sequence_captured(void)
{
	atomic_store_explicit(&captured, true, memory_order_relaxed);
}

/* The answers to libtms.so (gate.h). */

static bool is_seen(const struct communicator *c)
{
	return atomic_load(&c->state) == LIVE && c->clique && !atomic_load(&c->uncounted);
}

HIDDEN bool nccl_sequences(size_t *cursor, struct gate_sequence *to)
{
	enum { EACH_HAS = 1 << 24 }; /* of a communicator: 0 is its collectives, then two for each peer */
	for (; *cursor / EACH_HAS < atomic_load(&communicators_used); *cursor += EACH_HAS - *cursor % EACH_HAS) {
		const struct communicator *c = &communicators[*cursor / EACH_HAS];
		const struct sequence *s = &c->collectives;
		const struct pairs *pairs = atomic_load(&c->pairs);
		const size_t at = *cursor % EACH_HAS, peer = (at - 1) / 2;
		if (!is_seen(c) || (at > 0 && (!pairs || peer >= (size_t)c->ranks || peer >= (size_t)pairs->count)))
			continue;
		*to = (struct gate_sequence){.clique = c->clique, .ranks = c->ranks, .from = -1, .to = -1};
		if (at > 0) {
			s = at % 2 ? &pairs->of[peer].sent : &pairs->of[peer].received;
			to->from = at % 2 ? c->rank : (int)peer;
			to->to = at % 2 ? (int)peer : c->rank;
		}
		to->wanted = atomic_load(&process) && atomic_load(&s->wanted) == atomic_load(&number);
		to->number = atomic_load(&s->begun);
		(*cursor)++;
		return true;
	}
	return false;
}

HIDDEN bool nccl_is_launching(void)
{
	return atomic_load(&launching) != 0;
}

HIDDEN bool nccl_has_captured(void)
{
	return atomic_load(&captured);
}

static void tell(struct sequence *s, uint64_t target, uint32_t now)
{
	if (!s)
		return;
	atomic_store(&s->target, target);
	atomic_store(&s->told, now);
}

static void tell_pairs(struct communicator *c, uint32_t now, bool all_begun)
{
	struct pairs *pairs = atomic_load(&c->pairs);
	for (int peer = 0; pairs && peer < c->ranks && peer < pairs->count; peer++) {
		struct pair *pair = &pairs->of[peer];
		tell(&pair->sent, all_begun ? atomic_load(&pair->sent.begun) : 0, now);
		tell(&pair->received, all_begun ? atomic_load(&pair->received.begun) : 0, now);
	}
}

static void set_number(uint32_t now)
{
	atomic_store(&number, now);
	syscall(SYS_futex, &number, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

HIDDEN void nccl_freeze(void)
{
	const uint32_t now = atomic_load(&number) + 1;
	for EACH (c, communicator) {
		if (!is_seen(c))
			continue;
		tell(&c->collectives, atomic_load(&c->collectives.begun), now);
		tell_pairs(c, now, true);
	}
	set_number(now);
	atomic_store(&process, (pid_t)syscall(SYS_getpid));
}

/* Returns the sequence of a communicator that a target names, or NULL. */
static struct sequence *named(struct communicator *c, const struct gate_sequence *t)
{
	if (!is_seen(c) || c->clique != t->clique)
		return NULL;
	if (t->from < 0)
		return &c->collectives;
	if (c->rank == t->from)
		return sequence_of(c, SENT, t->to);
	return c->rank == t->to ? sequence_of(c, RECEIVED, t->from) : NULL;
}

/* Reports whether these are the targets already. Waiting threads are then not woken: a woken thread does not count
 * as waiting until it waits again. */
static bool are_set(const struct gate_sequence *targets, size_t count)
{
	static size_t last;
	bool same = count == last;
	last = count;
	for (size_t i = 0; i < count; i++)
		for EACH (c, communicator) {
			const struct sequence *s = named(c, &targets[i]);
			if (s && (atomic_load(&s->told) != atomic_load(&number) || atomic_load(&s->target) != targets[i].number))
				same = false;
		}
	return same;
}

/* If a communicator's collectives are named, its pairs that are not named have 0 for a target. */
HIDDEN void nccl_limit(const struct gate_sequence *targets, size_t count)
{
	if (are_set(targets, count))
		return;
	const uint32_t now = atomic_load(&number) + 1;
	for (int pairs = 0; pairs < 2; pairs++)
		for (size_t i = 0; i < count; i++) {
			const struct gate_sequence *t = &targets[i];
			for EACH (c, communicator) {
				struct sequence *s = (t->from >= 0) == pairs ? named(c, t) : NULL;
				tell(s, t->number, now);
				if (s && !pairs)
					tell_pairs(c, now, false);
			}
		}
	set_number(now);
}

HIDDEN void nccl_release(void)
{
	atomic_store(&process, 0);
	set_number(atomic_load(&number) + 1);
}
