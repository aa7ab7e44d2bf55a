/* share has what a process of tms run --share does when device memory is short: it runs the command tms share, which
 * makes other processes give way, and tries again. The process publishes its request (control.Share), so other
 * processes do not take memory freed for it. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

HIDDEN struct share_wanted share_wanted;

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

/* The command may be killed at any moment, so it is started again, unless it never does its work. */
enum { STARTS_MOST = 10, ROOMS_MOST = 64 };

/* The allocation may take the reserve, too. */
static __thread bool fills __attribute__((tls_model("initial-exec")));
static _Atomic int64_t unkept; /* until then the reserve is not asked for, because no process could give one */

static int64_t nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000 + now.tv_nsec;
}

HIDDEN bool share_keeps_reserve(void)
{
	return !fills && nanoseconds() >= atomic_load(&unkept);
}

OUT_OF_LINE int make_room_now(void)
{
	char process[16];
	uint64_t reserve = 0;
	int code, failed = 0;
	snprintf(process, sizeof process, "%d", (int)getpid());
	char *arguments[] = {NULL, "share", process, "--report", NULL};
	do {
		code = helper_run(arguments, &reserve, "other processes do not make room for this one",
				  "it is started again");
		if (code == SUCCESS && reserve)
			atomic_store(&unkept, nanoseconds() + 1000000000);
		if (code == SUCCESS || code == ERROR_MEMORY_ALLOCATION)
			return code;
	} while (code != ERROR_OPERATING_SYSTEM && ++failed < STARTS_MOST);
	static atomic_flag told = ATOMIC_FLAG_INIT;
	if (!atomic_flag_test_and_set(&told))
		error_log_failure("TMS_SHARE", ERROR_OPERATING_SYSTEM);
	return ERROR_OPERATING_SYSTEM;
}

HIDDEN int share_make_room(void)
{
	static _Atomic uint32_t number = 1U << 31; /* the engine counts from 1 on */
	struct recording_operation wait = {.kind = RECORDING_WAIT, .number = atomic_fetch_add(&number, 1)};
	int64_t since = nanoseconds();
	recording_operation(&wait);
	wait.over = true;
	wait.code = make_room_now();
	wait.took = wait.waited = (uint64_t)(nanoseconds() - since);
	recording_operation(&wait);
	return wait.code;
}

/* One thread at a time waits, and others wait for it. */
HIDDEN void share_enter(void)
{
	pthread_mutex_lock(&asking);
}

HIDDEN int share_want(size_t bytes, int device, bool resumes)
{
	share_wanted.device = device;
	share_wanted.resumes = resumes;
	__atomic_store_n(&share_wanted.bytes, bytes, __ATOMIC_RELAXED);
	if (share_wanted.since == 0) /* else it waits already */
		__atomic_store_n(&share_wanted.since, nanoseconds(), __ATOMIC_RELEASE);
	return share_make_room();
}

HIDDEN void share_leave(void)
{
	if (share_wanted.since) {
		int64_t now = nanoseconds();
		__atomic_store_n(&share_wanted.waited, share_wanted.waited + now - share_wanted.since, __ATOMIC_RELEASE);
		if (!share_wanted.resumes)
			__atomic_store_n(&share_wanted.grew, now, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&share_wanted.since, 0, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&asking);
}

/* Before the first allocation: others must see what the process has. */
static void begin(void)
{
	static _Atomic bool begun;
	if (!atomic_load(&begun) && !capturing()) {
		atomic_store(&begun, true);
		(void)operation_serve(); /* if this fails, no process asks it for memory; a line on stderr says why */
	}
}

/* For a call of the driver that found too little memory. */
static bool make_room(int device, size_t bytes)
{
	if (device < 0 && forward_cuCtxGetDevice(&device) != SUCCESS)
		return false;
	bool made = false;
	if (go_now() == GO_AWAKE && IN_GO((made = tmsMakeRoom(device), SUCCESS)) == SUCCESS && made)
		return true; /* from the process's own slack */
	begin();
	share_enter();
	int code = share_want(bytes ? bytes : 1, device, false); /* and the reserve */
	share_leave();
	return code == SUCCESS;
}

/* libtms_reach.so asks for this. Returns NULL if the process does not share its devices. */
EXPORT bool (*tms_room(void))(int, size_t)
{
	region_load_environment();
	return region_config.share ? make_room : NULL;
}

/* What the program may have of a device, its own memory included, or 0 before the first question. Until an allocation is
 * refused, only the program's own memory changes the answer: engines measure what they take by the memory that is free
 * before and after, and neighbours come and go in between. */
static _Atomic uint64_t may_have[ORDERED_DEVICES];

static void forget(int device)
{
	if ((unsigned)device < ORDERED_DEVICES)
		atomic_store(&may_have[device], 0);
}

/* Asks the command, which knows the others; without its answer, only what is free can be had. */
OUT_OF_LINE uint64_t ask_what_may_be_taken(int device, uint64_t available, uint64_t total)
{
	char process[16], figures[96] = ""; /* a UUID has 40 characters, a number 20 */
	uint64_t bytes = available;
	if (IN_GO(tmsUUID(device, figures, sizeof figures)) != SUCCESS)
		return available;
	snprintf(process, sizeof process, "%d", (int)getpid());
	size_t length = strlen(figures);
	snprintf(figures + length, sizeof figures - length, ",%llu,%llu", (unsigned long long)available,
		 (unsigned long long)total);
	char *arguments[] = {NULL, "share", process, "--report", "--may-take", figures, NULL};
	int code = helper_run(arguments, &bytes, "the program is told CUDA's own figure", "its answer is not known");
	return code == SUCCESS ? bytes : available;
}

HIDDEN uint64_t share_may_take(int device, uint64_t has, uint64_t available, uint64_t total)
{
	if ((unsigned)device >= ORDERED_DEVICES)
		return available;
	uint64_t most = atomic_load(&may_have[device]);
	if (most == 0) {
		uint64_t found = has + ask_what_may_be_taken(device, available, total);
		most = atomic_compare_exchange_strong(&may_have[device], &most, found) ? found : most;
	}
	return most > has ? most - has : 0;
}

/* The driver may need more room than the bytes, or another process may have taken some, so a little more is asked for each
 * time, as far as that can be had. An allocation for which room was made, or cannot be, may fill the device. */
HIDDEN int share_allocate(int device, size_t size, int (*allocate)(void *), void *with)
{
	enum { GRANULE = 2 << 20, MORE_MOST = 16 };
	if (unlikely(region_config.share))
		begin();
	int code = allocate(with);
	if (likely(code != SHORT_OF_MEMORY))
		return code;
	share_enter();
	code = allocate(with);
	fills = true;
	size_t margin = __atomic_load_n(&region_process.margin_bytes, __ATOMIC_RELAXED);
	for (size_t made = 0, more = 0; code == SHORT_OF_MEMORY && made < ROOMS_MOST; made++) {
		size_t granules = (size + GRANULE - 1) / GRANULE + more;
		int room = share_want(granules * GRANULE + margin, device, false);
		if (room == ERROR_MEMORY_ALLOCATION && more == 0)
			break;
		if (room != ERROR_MEMORY_ALLOCATION)
			code = allocate(with);
		if (room != ERROR_MEMORY_ALLOCATION && room != SUCCESS)
			break; /* no process can be asked to make room, so this one has only what others leave free */
		more = room == SUCCESS ? (more + 1) % MORE_MOST : 0;
	}
	fills = false;
	share_leave();
	if (code == SHORT_OF_MEMORY)
		forget(device);
	return code == SHORT_OF_MEMORY ? ERROR_MEMORY_ALLOCATION : code;
}
