/* steps counts the steps of the program between which others may move its sets to other versions (versions.go). The
 * program marks them. A step that begins while a set is moved waits, and a move waits for steps in progress. */
#define _GNU_SOURCE
#include "shim.h"
#include "tms.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int steps;	 /* in progress */
static _Atomic int holds;	 /* moves that keep steps from beginning */
static _Atomic bool across; /* some thread has ended the step of another, so `own` says nothing */
static __thread int own __attribute__((tls_model("initial-exec"))); /* steps in progress that this thread began */

/* Each side first says what it does and then looks at the other, so one of them sees the other. A step within another
 * one of its thread waits for no move, because the move waits for the outer one. */
EXPORT void tms_kept_step_begin(void)
{
	if (go_now() == GO_DEAD)
		return; /* in a child no thread moves a set, and its parent's may have been at it */
	for (;;) {
		atomic_fetch_add(&steps, 1);
		int held = atomic_load(&holds);
		if (likely(!held) || (own > 0 && !atomic_load(&across))) {
			own++;
			return;
		}
		atomic_fetch_sub(&steps, 1);
		syscall(SYS_futex, &holds, FUTEX_WAIT_PRIVATE, held, NULL, NULL, 0);
	}
}

EXPORT void tms_kept_step_end(void)
{
	if (atomic_load(&steps) == 0 || go_now() == GO_DEAD)
		return;
	if (own > 0)
		own--;
	else
		atomic_store(&across, true);
	atomic_fetch_sub(&steps, 1);
}

HIDDEN void steps_hold(bool on)
{
	atomic_fetch_add(&holds, on ? 1 : -1);
	if (!on)
		syscall(SYS_futex, &holds, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

HIDDEN int steps_in_progress(void)
{
	return atomic_load(&steps);
}
