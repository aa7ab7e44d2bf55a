/* inside knows which threads are inside NCCL, or in the middle of a group of calls, and keeps threads out. */
#define _GNU_SOURCE
#include "nccl.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Whether this thread is inside NCCL. */
static __thread struct {
	unsigned calls;	 /* nested calls, because NCCL calls itself */
	unsigned groups; /* begun and not ended */
	bool filled;	 /* the group has an operation */
} mine __attribute__((tls_model("initial-exec")));
static _Atomic int inside; /* threads */
static _Atomic pid_t stopped; /* the process whose threads may not enter, or 0 */

HIDDEN bool inside_step_in(bool may_fail)
{
	for (;;) {
		uint32_t seen = gate_change();
		atomic_fetch_add(&inside, 1);
		const pid_t no_entry = atomic_load(&stopped);
		if (likely(!no_entry) || no_entry != (pid_t)syscall(SYS_getpid))
			return true;
		atomic_fetch_sub(&inside, 1);
		if (may_fail && gate_refuses())
			return false;
		gate_wait_for_change(seen);
	}
}

/* A thread in an empty group can step out, because NCCL has nothing of the group yet. */
HIDDEN bool inside_step_out(void)
{
	const bool out = mine.calls == 1 && !mine.filled;
	if (out)
		atomic_fetch_sub(&inside, 1);
	return out;
}

HIDDEN bool inside_enter(void)
{
	if (!mine.calls && !mine.groups && unlikely(!inside_step_in(true)))
		return false;
	mine.calls++;
	return true;
}

HIDDEN void inside_leave(bool fills)
{
	mine.filled = mine.groups && (mine.filled || fills);
	if (!--mine.calls && !mine.groups)
		atomic_fetch_sub(&inside, 1);
}

HIDDEN bool inside_a_group(void)
{
	return mine.groups != 0;
}

HIDDEN bool inside_nccl(void)
{
	return mine.calls != 0;
}

HIDDEN bool inside_is_outermost(void)
{
	return mine.calls <= 1;
}

HIDDEN void inside_group_started(void)
{
	if (mine.calls == 1)
		mine.groups++;
}

HIDDEN bool inside_group_ended(void)
{
	return mine.calls == 1 && mine.groups && !--mine.groups;
}

/* The answers to libtms.so (gate.h). */

HIDDEN void nccl_stop(bool on)
{
	atomic_store(&stopped, on ? (pid_t)syscall(SYS_getpid) : 0);
	if (!on)
		gate_changed();
}

HIDDEN bool nccl_is_used(void)
{
	return atomic_load(&inside) != 0;
}
