/* gate reaches the gate of libtms_reach.so, where that is preloaded too, and knows what a gate cannot stop. */
#define _GNU_SOURCE
#include "gate.h"
#include "reach/gate.h"
#include "region.h"
#include "symbols.h"

#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_there(void)
{
	return &tms_reach_gate != NULL;
}

HIDDEN const char *gate_unusable(void)
{
	if (!is_there())
		return "libtms_reach.so is not preloaded, so the program's calls cannot be stopped: start the program with "
		       "tms run, or preload libtms_reach.so behind libtms.so";
	return tms_reach_gate.unusable();
}

static _Atomic bool closed;
static _Atomic bool stops_allocations;

HIDDEN bool gate_is_closed(void)
{
	return atomic_load_explicit(&closed, memory_order_relaxed);
}

HIDDEN int gate_set(enum gate_state state)
{
	if (state != GATE_OPEN)
		atomic_store(&closed, true);
	int error = tms_reach_gate.set(state, atomic_load(&go_process.page));
	if (state == GATE_OPEN || error != 0) {
		atomic_store(&closed, false);
		atomic_store(&stops_allocations, false);
	}
	return error;
}

HIDDEN void gate_stop_allocations(void)
{
	atomic_store(&stops_allocations, true);
}

/* A thread that is not let in leaves with NULL, too, but then the gate is still closed. */
static int wait_until_open(const struct gate_call *call)
{
	gate_leave_capture(gate_enter_capture(call, NULL));
	if (!gate_is_closed() || !gate_refuses())
		return SUCCESS;
	return error_fail(ERROR_ILLEGAL_STATE, "this process is paused, and calls that would wait fail, because it was told "
					       "to end or a resume in an order has failed; tms resume %d brings its "
					       "memory back", (int)getpid());
}

HIDDEN int gate_before_allocation(void)
{
	static const struct gate_call call = {.name = "an allocation", .kind = WORK};
	if (unlikely(atomic_load_explicit(&stops_allocations, memory_order_relaxed)))
		return wait_until_open(&call);
	return SUCCESS;
}

HIDDEN int gate_wait(void)
{
	static const struct gate_call call = {.name = "an import", .kind = WORK};
	return wait_until_open(&call);
}

/* The kernel may have given an ended thread's number to a thread of another process, so the question names both. */
static bool lives(pid_t thread)
{
	return syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH;
}

/* A bit in the pointer to a mark's call: a look has counted this call. The thread's next call overwrites the pointer,
 * and with it the bit, in the one store that every call makes. */
enum { SEEN = 1 };

static const struct gate_call *with_seen(const struct gate_call *call, uintptr_t seen)
{
	return (const struct gate_call *)(((uintptr_t)call & ~(uintptr_t)SEEN) | seen);
}

HIDDEN bool gate_has_worked(void)
{
	bool worked = false;
	for (struct gate_mark *mark = NULL; (mark = tms_reach_gate.next(mark));) {
		const struct gate_call *call = atomic_load(&mark->call);
		if (call && !((uintptr_t)call & SEEN)) {
			worked = true; /* if it is another call by now, the next look counts that */
			atomic_compare_exchange_strong(&mark->call, &call, with_seen(call, SEEN));
		}
		/* A thread that waits for the device has work there. */
		uint32_t inside = atomic_load(&mark->inside);
		bool busy = inside == TRYING || inside == INSIDE || atomic_load(&mark->polling);
		worked = worked || (busy && atomic_load(&mark->taken) && lives((pid_t)atomic_load(&mark->thread)));
	}
	return worked;
}

HIDDEN bool gate_look(const void **cursor, struct gate_user *user)
{
	const struct gate_mark *mark = *cursor;
	while ((mark = tms_reach_gate.next(mark))) {
		uint32_t inside = atomic_load_explicit(&mark->inside, memory_order_acquire);
		const struct gate_call *call = with_seen(atomic_load_explicit(&mark->call, memory_order_acquire), 0);
		if (!call)
			continue;
		*cursor = mark;
		*user = (struct gate_user){
			.thread = (pid_t)atomic_load(&mark->thread),
			.call = call->name,
			.stream = atomic_load(&mark->stream),
			.works = inside == TRYING || inside == INSIDE,
			.captures = call->kind == CAPTURE,
			.passes = call->kind == PASS,
		};
		user->lives = atomic_load(&mark->taken) && lives(user->thread);
		return true;
	}
	return false;
}

HIDDEN bool gate_inside(struct gate_user *user)
{
	for (struct gate_mark *mark = NULL; (mark = tms_reach_gate.next(mark));) {
		const struct gate_call *call = atomic_load_explicit(&mark->polling, memory_order_acquire);
		if (!call && atomic_load_explicit(&mark->inside, memory_order_acquire) != OUT)
			call = with_seen(atomic_load(&mark->call), 0);
		*user = (struct gate_user){.thread = (pid_t)atomic_load(&mark->thread)};
		if (!call || !(user->lives = atomic_load(&mark->taken) && lives(user->thread)))
			continue;
		user->call = call->name;
		return true;
	}
	return false;
}

#define X(returns, name, parameters, arguments)                                                    \
	HIDDEN returns gate_##name parameters                                                      \
	{                                                                                          \
		return is_there() ? tms_reach_gate.name arguments : (returns)0;                    \
	}
GATE_ASKED(X)
#undef X
#define X(returns, name, parameters, arguments)                                                    \
	HIDDEN returns nccl_##name parameters                                                      \
	{                                                                                          \
		return gate_unusable() ? (returns)0 : tms_reach_gate.nccl->name arguments;         \
	}
GATE_NCCL(X)
#undef X

/* The first loaded library whose name begins as one of these. */
struct sought {
	const char *const *prefixes; /* up to a NULL */
	char *name;
	size_t size;
};

static int look_at(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	const struct sought *sought = data;
	const char *base = file_of(info->dlpi_name);
	for (const char *const *prefix = sought->prefixes; *prefix; prefix++)
		if (strncmp(base, *prefix, strlen(*prefix)) == 0)
			return snprintf(sought->name, sought->size, "%s", base);
	return 0;
}

/* Libraries by which the GPU or a network card starts work without a call of the process. libnvshmem_host.so is not
 * one: PyTorch and JAX load it, and may not use it. It loads these when it is initialized. */
static const char *const self_starting[] = {"nvshmem_bootstrap_", "nvshmem_transport_", NULL};

HIDDEN bool gate_self_starting(char *name, size_t size)
{
	return libraries_each(look_at, &(struct sought){self_starting, name, size}) != 0;
}

HIDDEN bool gate_knows(uintptr_t address)
{
	return range_around((const void *)address).end != 0;
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *count)
{
	(void)size;
	*(uint64_t *)count = info->dlpi_adds;
	return 1;
}

HIDDEN uint64_t gate_loads(void)
{
	uint64_t count = 0;
	libraries_each(count_loads, &count);
	return count;
}

HIDDEN bool nccl_is_unseen(void)
{
	static const char *const nccl[] = {"libnccl", NULL};
	return region_config.nccl_registers && gate_unusable() &&
	       libraries_each(look_at, &(struct sought){nccl, NULL, 0}) != 0;
}

HIDDEN struct gate_mark *gate_enter_capture(const struct gate_call *call, void *stream)
{
	return is_there() ? tms_reach_gate.enter(call, (uintptr_t)stream) : NULL;
}

HIDDEN void gate_leave_capture(struct gate_mark *mark)
{
	if (mark)
		tms_reach_gate.leave(mark);
}
