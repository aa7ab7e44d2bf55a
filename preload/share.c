/* share has what a process of tms run --share does when device memory is short: it runs the command tms share, which
 * makes others give way, and tries again. What it waits for can be seen at its control socket (control.Share), so that
 * others leave it the memory that was made free for it. */
#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

HIDDEN struct share_wanted share_wanted;

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

/* The command may be killed at any moment, so it is started again, unless it never does its work. */
enum { STARTS_MOST = 10, ROOMS_MOST = 64 };

HIDDEN int share_make_room(void)
{
	char process[16];
	uint64_t none;
	int code, failed = 0;
	snprintf(process, sizeof process, "%d", (int)getpid());
	char *arguments[] = {NULL, "share", process, "--report", NULL};
	do {
		code = helper_run(arguments, &none, "other processes do not make room for this one",
				  "it is started again");
		if (code == SUCCESS || code == ERROR_MEMORY_ALLOCATION)
			return code;
	} while (code != ERROR_OPERATING_SYSTEM && ++failed < STARTS_MOST);
	static atomic_flag told = ATOMIC_FLAG_INIT;
	if (!atomic_flag_test_and_set(&told))
		error_log_failure("TMS_SHARE", ERROR_OPERATING_SYSTEM);
	return ERROR_OPERATING_SYSTEM;
}

/* One thread at a time waits, and others wait for it. */
HIDDEN void share_enter(void)
{
	pthread_mutex_lock(&asking);
}

HIDDEN int share_want(size_t bytes, int device, bool resumes)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	share_wanted.device = device;
	share_wanted.resumes = resumes;
	__atomic_store_n(&share_wanted.bytes, bytes, __ATOMIC_RELAXED);
	if (share_wanted.since == 0) /* else it waits already */
		__atomic_store_n(&share_wanted.since, now.tv_sec * 1000000000 + now.tv_nsec, __ATOMIC_RELEASE);
	return share_make_room();
}

HIDDEN void share_leave(void)
{
	__atomic_store_n(&share_wanted.since, 0, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&asking);
}

HIDDEN void share_begin(void)
{
	static _Atomic bool begun;
	if (!atomic_load(&begun) && !capturing()) {
		atomic_store(&begun, true);
		(void)operation_serve(); /* or nobody asks it for memory, and TMS_CONTROL says why on stderr */
	}
}

/* The driver may need more room than the bytes, or another process may have taken some, so a little more is asked for each
 * time, as far as that can be had. */
HIDDEN int share_allocate(int device, size_t size, int (*allocate)(void *), void *with)
{
	enum { GRANULE = 2 << 20, MORE_MOST = 16 };
	share_enter();
	int code = allocate(with);
	size_t margin = __atomic_load_n(&region_process.margin_bytes, __ATOMIC_RELAXED);
	for (size_t made = 0, more = 0; code == SHORT_OF_MEMORY && made < ROOMS_MOST; made++) {
		size_t granules = (size + GRANULE - 1) / GRANULE + more;
		if (share_want(granules * GRANULE + margin, device, false) == SUCCESS) {
			code = allocate(with);
			more = (more + 1) % MORE_MOST;
		} else if (more > 0) {
			more = 0;
		} else {
			break;
		}
	}
	share_leave();
	return code == SHORT_OF_MEMORY ? ERROR_MEMORY_ALLOCATION : code;
}
