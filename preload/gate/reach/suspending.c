/* suspending makes communicators give their memory back and take it again, by ncclCommSuspend(comm, NCCL_SUSPEND_MEM)
 * and ncclCommResume(comm) of NCCL 2.29.7 and later. Each waits for all ranks (bootstrapBarrier in NCCL's
 * src/mem_manager.cc), and such a wait cannot be cancelled. So it suspends only communicators whose ranks are all here,
 * or are suspended in the other processes at the same time. Each has a thread of its own, and the caller stops waiting
 * in time. */
#define _GNU_SOURCE
#include "nccl.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SUSPEND_MEM = 1 };				    /* NCCL_SUSPEND_MEM */
enum { CAN_BE_SUSPENDED = 0, IS_SUSPENDED = 1, TOTAL = 3 }; /* ncclCommMemStat_t */

static uint64_t stat_of(const struct communicator *c, int stat)
{
	uint64_t value = 0;
	stats_function *ask = REAL(c->library, ncclCommMemStats, stats_function);
	return ask && ask(c->comm, stat, &value) == DONE ? value : 0;
}

static const char elsewhere[] = "ncclCommSuspend waits for all ranks, and some are in other processes";

/* Returns why a communicator cannot be suspended, or NULL. With ask it asks NCCL too, so no thread may be inside. */
static const char *obstacle(const struct communicator *c, bool ask)
{
	if (!REAL(c->library, ncclCommSuspend, suspend_function) || !REAL(c->library, ncclCommResume, resume_function))
		return "this version has no ncclCommSuspend, which came with 2.29.7";
	if (atomic_load(&c->code) != DONE)
		return "ncclCommSuspend has failed";
	if (!c->blocking)
		return "non-blocking ones go on with threads of NCCL's own";
	if (c->ranks != 1 && !c->clique)
		return "which processes its ranks are in is not known";
	if (ask && stat_of(c, TOTAL) == 0)
		return "NCCL's memory manager is off, or has nothing";
	if (ask && stat_of(c, IS_SUSPENDED))
		return "the program has suspended it";
	if (c->ranks != 1 && comm_here(c) != c->ranks && !atomic_load(&c->together))
		return elsewhere;
	return NULL;
}

static bool is_busy(int phase)
{
	return phase == SUSPENDING || phase == RESUMING;
}

HIDDEN bool nccl_look(size_t *cursor, bool ask, struct gate_communicator *to)
{
	for (; *cursor < atomic_load(&communicators_used); (*cursor)++) {
		const struct communicator *c = &communicators[*cursor];
		if (atomic_load(&c->state) != LIVE)
			continue;
		int phase = atomic_load(&c->phase);
		*to = (struct gate_communicator){
			.version = nccl_version(c->library),
			.suspended = phase == SUSPENDED,
			.busy = is_busy(phase) || phase == GIVEN_UP,
			.lost = phase == LOST,
			.code = atomic_load(&c->code),
			.clique = c->clique,
			.ranks = c->ranks,
			.here = comm_here(c),
		};
		if (phase == RUNNING)
			to->obstacle = obstacle(c, ask);
		to->apart = to->obstacle == elsewhere;
		if (ask && (phase == RUNNING || phase == SUSPENDED)) {
			to->total = stat_of(c, TOTAL);
			to->suspendable = stat_of(c, CAN_BE_SUSPENDED);
		}
		(*cursor)++;
		return true;
	}
	return false;
}

/* One rank's suspend or resume. It may never return, if another rank's does not; its thread then stays there. */
static _Atomic uint32_t started; /* counts up: threads of the number before may begin */

struct rank {
	struct communicator *c;
	uint32_t number;
	bool suspend;
};
static _Atomic bool called_off;

/* NCCL works on the device that is current, which on a new thread is the first: it would make a context there. */
static int enter_device(struct communicator *c)
{
	count_function *ask = REAL(c->library, ncclCommCuDevice, count_function);
	void *context;
	int device;
	if (!ask || !atomic_load(&comm_driver.release) || ask(c->comm, &device) != DONE ||
	    atomic_load(&comm_driver.retain)(&context, device) != 0)
		return -1;
	atomic_load(&comm_driver.set_current)(context);
	return device;
}

static void leave_device(int device)
{
	if (device < 0)
		return;
	atomic_load(&comm_driver.set_current)(NULL);
	atomic_load(&comm_driver.release)(device);
}

static int call_nccl(struct communicator *c, bool suspend)
{
	static struct gate_call calls[] = {{.name = "ncclCommResume", .kind = PASS},
					   {.name = "ncclCommSuspend", .kind = PASS}};
	struct gate_mark *mark = gate_pass(&calls[suspend]);
	if (!mark)
		return SYSTEM_ERROR;
	int device = enter_device(c);
	int code = suspend ? REAL(c->library, ncclCommSuspend, suspend_function)(c->comm, SUSPEND_MEM)
			   : REAL(c->library, ncclCommResume, resume_function)(c->comm);
	leave_device(device);
	gate_leave(mark);
	return code;
}

static void *carry_out(void *rank)
{
	struct rank job = *(struct rank *)rank;
	free(rank);
	struct communicator *c = job.c;
	while (atomic_load(&started) == job.number)
		syscall(SYS_futex, &started, FUTEX_WAIT_PRIVATE, job.number, NULL, NULL, 0);
	if (atomic_load(&called_off)) {
		atomic_store(&c->phase, job.suspend ? RUNNING : SUSPENDED);
		return NULL;
	}
	int code = call_nccl(c, job.suspend), phase = SUSPENDING;
	atomic_store(&c->code, code);
	if (!job.suspend || code != DONE) {
		atomic_store(&c->phase, code != DONE && !job.suspend ? LOST : RUNNING);
	} else if (!atomic_compare_exchange_strong(&c->phase, &phase, SUSPENDED)) { /* its caller no longer waits */
		atomic_store(&c->code, code = call_nccl(c, false));
		atomic_store(&c->phase, code != DONE ? LOST : RUNNING);
	}
	if (!c->comm) /* destroyed during the call: see comm_goes */
		atomic_store(&c->state, FREE);
	return NULL;
}

static bool start_thread(struct communicator *c, bool suspend, uint32_t number)
{
	pthread_t thread;
	struct rank *rank = malloc(sizeof *rank);
	if (!rank)
		return false;
	*rank = (struct rank){c, number, suspend};
	sigset_t all, before;
	sigfillset(&all);
	sigdelset(&all, SIGSYS); /* a sandbox's, which answers system calls */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool made = pthread_create(&thread, NULL, carry_out, rank) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (made)
		pthread_detach(thread);
	else
		free(rank);
	return made;
}

HIDDEN void nccl_together(uint64_t clique)
{
	for EACH (c, communicator)
		if (!clique || (atomic_load(&c->state) == LIVE && c->clique == clique))
			atomic_store(&c->together, clique != 0);
}

/* All threads exist before the first begins, because the others would wait for a missing one. */
HIDDEN bool nccl_begin(bool suspend)
{
	const uint32_t number = atomic_load(&started);
	bool all = true;
	atomic_store(&called_off, false);
	for EACH (c, communicator) {
		int was = suspend ? RUNNING : SUSPENDED;
		if (atomic_load(&c->state) != LIVE || atomic_load(&c->phase) != was || (suspend && obstacle(c, true)))
			continue;
		atomic_store(&c->phase, suspend ? SUSPENDING : RESUMING);
		if (!start_thread(c, suspend, number)) {
			atomic_store(&c->phase, was);
			all = false;
		}
	}
	atomic_store(&called_off, !all);
	atomic_fetch_add(&started, 1);
	syscall(SYS_futex, &started, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return all;
}

HIDDEN bool nccl_is_busy(void)
{
	for EACH (c, communicator) {
		if (atomic_load(&c->state) == LIVE && is_busy(atomic_load(&c->phase)))
			return true;
	}
	return false;
}

HIDDEN void nccl_give_up(void)
{
	for EACH (c, communicator) {
		int phase = atomic_load(&c->phase);
		if (atomic_load(&c->state) == LIVE && is_busy(phase)) /* else it has just ended */
			atomic_compare_exchange_strong(&c->phase, &phase, GIVEN_UP);
	}
}
