/* lock says what is watched, and has the lock that guards all of it. */
#include "parts.h"
#include "region.h"

#include <pthread.h>

HIDDEN _Atomic unsigned watch_what;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_mark process; /* the one with the memory; a child that no fork handler prepared notes nothing */
static bool started;		 /* under the lock */

AT_LOAD HIDDEN void watch_turn(unsigned what, bool on)
{
	if (on)
		atomic_fetch_or(&watch_what, what);
	else
		atomic_fetch_and(&watch_what, ~what);
}

HIDDEN void watch_begin_always(void)
{
	pthread_mutex_lock(&lock);
	if (unlikely(!started))
		fork_mark_set(&process); /* not at load, because it makes a system call */
	started = true;
}

HIDDEN bool watch_begin(unsigned what)
{
	if (likely(!watch_is_on(what)) || fork_happened(&process))
		return false;
	/* A fault in a recording's file is the library's, not the host's. */
	if (unlikely(!(atomic_load_explicit(&handlers_armed, memory_order_relaxed) & HANDLERS_BUS)) &&
	    watch_is_on(what & WATCH_RECORDS))
		handlers_arm();
	watch_begin_always();
	return true;
}

HIDDEN void watch_end(void)
{
	pthread_mutex_unlock(&lock);
}

FORK_WAITS_FOR(lock)

static void after_fork_in_child(void)
{
	fork_mark_set(&process);
	pthread_mutex_unlock(&lock);
}

AT_LOAD HIDDEN void watch_follow_forks(void (*in_child)(void))
{
	static _Atomic bool follows;
	if (!atomic_exchange(&follows, true))
		fork_notify(before_fork, after_fork_in_parent, after_fork_in_child);
	fork_notify(NULL, NULL, in_child);
}
