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

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER; /* one thread's allocation waits, others wait for it */

/* The command may be killed at any moment, so it is started again, unless it never does its work. */
enum { STARTS_MOST = 10, ROOMS_MOST = 64 };

HIDDEN int share_make_room(void)
{
	char process[16];
	uint64_t none;
	int code = HELPER_ENDED;
	snprintf(process, sizeof process, "%d", (int)getpid());
	char *arguments[] = {NULL, "share", process, "--report", NULL};
	for (int i = 0; i < STARTS_MOST && code == HELPER_ENDED; i++)
		code = helper_run(arguments, &none, "other processes do not make room for this one");
	if (code == ERROR_OPERATING_SYSTEM || code == HELPER_ENDED) {
		static atomic_flag told = ATOMIC_FLAG_INIT;
		if (!atomic_flag_test_and_set(&told))
			error_log_failure("TMS_SHARE", ERROR_OPERATING_SYSTEM);
		return ERROR_OPERATING_SYSTEM;
	}
	return code;
}

static void want(size_t bytes, int device, int64_t since)
{
	share_wanted.device = device;
	__atomic_store_n(&share_wanted.bytes, bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&share_wanted.since, since, __ATOMIC_RELEASE);
}

HIDDEN void share_begin(void)
{
	static _Atomic bool begun;
	if (!atomic_load(&begun) && !capturing()) {
		atomic_store(&begun, true);
		(void)operation_serve(); /* or a line says why not, and nobody asks it for memory */
	}
}

/* The driver may need more room than the bytes, or somebody may have taken some, so a little more is asked for each
 * time, as far as that can be had. */
HIDDEN int share_allocate(int device, size_t size, int (*allocate)(void *), void *with)
{
	enum { GRANULE = 2 << 20, MORE_MOST = 16 };
	struct timespec now;
	pthread_mutex_lock(&asking);
	int code = allocate(with);
	if (code == SHORT_OF_MEMORY && operation_serve() != SUCCESS)
		code = ERROR_MEMORY_ALLOCATION;
	clock_gettime(CLOCK_MONOTONIC, &now);
	size_t margin = __atomic_load_n(&region_process.margin_bytes, __ATOMIC_RELAXED);
	for (size_t made = 0, more = 0; code == SHORT_OF_MEMORY && made < ROOMS_MOST; made++) {
		want(((size + GRANULE - 1) & ~(size_t)(GRANULE - 1)) + margin + more * GRANULE, device,
		     now.tv_sec * 1000000000 + now.tv_nsec);
		if (share_make_room() == SUCCESS) {
			code = allocate(with);
			more = (more + 1) % MORE_MOST;
		} else if (more > 0) {
			more = 0;
		} else {
			break;
		}
	}
	want(0, 0, 0);
	pthread_mutex_unlock(&asking);
	return code == SHORT_OF_MEMORY ? ERROR_MEMORY_ALLOCATION : code;
}
