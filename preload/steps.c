/* steps counts the steps of the program between which others may move its sets to other versions (versions.go). The
 * program marks them. A step that begins while a set is moved waits, and a move waits for steps in progress. */
#define _GNU_SOURCE
#include "shim.h"
#include "tms.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int steps; /* in progress */
static _Atomic int holds; /* moves that keep steps from beginning */

/* Each side first says what it does and then looks at the other, so one of them sees the other. */
EXPORT void tms_kept_step_begin(void)
{
	if (go_now() == GO_DEAD)
		return; /* in a child no thread moves a set, and its parent's may have been at it */
	for (;;) {
		atomic_fetch_add(&steps, 1);
		int held = atomic_load(&holds);
		if (likely(!held))
			return;
		atomic_fetch_sub(&steps, 1);
		syscall(SYS_futex, &holds, FUTEX_WAIT_PRIVATE, held, NULL, NULL, 0);
	}
}

EXPORT void tms_kept_step_end(void)
{
	if (atomic_load(&steps) > 0 && go_now() != GO_DEAD)
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
