/* held ends NVML in this process for the time of a snapshot, because CRIU dumps no file of the driver, and begins it again
 * as often as the program has begun it. Calls of the program wait from before the end until NVML is there again.
 * libtms_reach.so has dlsym answer with the functions below; calls that the loader binds do not come here.
 *
 * A handle of a device is what the program was given at first: where NVML gives another one after it was begun again, the
 * functions below translate, by the UUIDs of the devices. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"
#include "heldtable.h"
#include "symbols.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NVML_UNINITIALIZED = 1, DEVICES = 64, UUID = 96, BEGUN_MOST = 1 << 16, ERROR_NOT_READY = 600 };

static _Atomic uint32_t held;	  /* calls wait */
static struct fork_mark holding; /* the process that holds them: a child has no thread that ends this */
static unsigned begun;		  /* how often NVML was begun when it was ended */

static struct device {
	char uuid[UUID];
	uintptr_t given, now; /* to the program, and by NVML */
} devices[DEVICES];
static int device_count;
static _Atomic bool differ; /* some given handle is no longer NVML's. All three change only while no call is in progress */

/* NVML's own, found before calls wait: a thread that waits may have the loader's lock. */
static struct {
	int (*init)(void), (*shutdown)(void);
	int (*count)(unsigned *), (*by_index)(unsigned, uintptr_t *), (*uuid)(uintptr_t, char *, unsigned);
} real;

enum {
#define X(symbol, ...) AT_##symbol,
	HELD_CALLS(X)
#undef X
	CALLS
};
static void *_Atomic theirs[CALLS];
static _Atomic int inside[CALLS]; /* calls in progress */

static void enter(int at)
{
	for (;;) {
		atomic_fetch_add(&inside[at], 1);
		if (likely(!atomic_load(&held)))
			return;
		atomic_fetch_sub(&inside[at], 1);
		int error = errno;
		if (fork_happened(&holding))
			held_begin();
		else /* a bare system call, because a cancelled thread must not end here */
			syscall(SYS_futex, &held, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
		errno = error;
	}
}

static void leave(int at)
{
	atomic_fetch_sub(&inside[at], 1);
}

static void in_child(void)
{
	for (int at = 0; at < CALLS; at++)
		atomic_store(&inside[at], 0); /* of threads that are not here */
}

static int in_progress(void)
{
	int at = 0;
	while (at < CALLS && !atomic_load(&inside[at]))
		at++;
	return at;
}

static uintptr_t there(uintptr_t given)
{
	for (int i = 0; unlikely(atomic_load(&differ)) && i < device_count; i++)
		if (devices[i].given == given)
			return devices[i].now;
	return given;
}

static void here(uintptr_t *handles, unsigned count)
{
	for (unsigned at = 0; unlikely(atomic_load(&differ)) && handles && at < count; at++)
		for (int i = 0; i < device_count; i++)
			if (devices[i].now == handles[at]) {
				handles[at] = devices[i].given;
				break;
			}
}

#define THERE(handle) handle = there(handle);
#define HERE(handle) here((uintptr_t *)handle, 1);
#define ALL_HERE(handles, count) here((uintptr_t *)handles, handles ? *(unsigned *)count : 0);

/* X(symbol, words, before, after): what becomes of handles before the call, and after one that has succeeded. */
#define X(symbol, words, before, after)                                                            \
	static uintptr_t held_##symbol(WORDS_##words)                                              \
	{                                                                                          \
		enter(AT_##symbol);                                                                 \
		before;                                                                            \
		uintptr_t result =                                                                 \
			((uintptr_t(*)(WORDS_##words))atomic_load(&theirs[AT_##symbol]))(PASS_##words); \
		if ((int)result == SUCCESS) {                                                      \
			after;                                                                     \
		}                                                                                  \
		leave(AT_##symbol);                                                                 \
		if ((int)result == SUCCESS)                                                        \
			listener_start();                                                          \
		return result;                                                                     \
	}
HELD_CALLS(X)
#undef X

static const struct {
	const char *name;
	void *own;
} calls[CALLS] = {
#define X(symbol, ...) {#symbol, (void *)held_##symbol},
	HELD_CALLS(X)
#undef X
};

/* Why some calls do not come here, or "". Written once. */
static char unseen[200];
static _Atomic int has_unseen; /* 1 while it is written, then 2 */

static void note_unseen(const char *format, const char *name)
{
	int none = 0;
	if (!atomic_compare_exchange_strong(&has_unseen, &none, 1))
		return;
	snprintf(unseen, sizeof unseen, format, name);
	atomic_store(&has_unseen, 2);
}

HIDDEN void *held_function(const char *name, void *found)
{
	if (!region_config.control || !found)
		return found;
	for (int at = 0; at < CALLS; at++) {
		if (strcmp(calls[at].name, name) != 0)
			continue;
		void *none = NULL;
		if (atomic_compare_exchange_strong(&theirs[at], &none, found) || none == found)
			return calls[at].own;
		note_unseen("the program uses two copies of NVML (it has asked both for %.80s)", name);
		return found;
	}
	note_unseen("the program has asked for NVML's function %.80s, which this version of tms does not know", name);
	return found;
}

static int look_for_needs(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct symbols symbols;
	const ElfW(Dyn) *entry = dynamic_of(info);
	if (!read_symbols(info->dlpi_addr, entry, &symbols))
		return 0;
	for (; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_NEEDED && is_library(symbols.names + entry->d_un.d_val, "libnvidia-ml"))
			return snprintf(data, PATH_MAX, "%s", *info->dlpi_name ? info->dlpi_name : "the program itself");
	return 0;
}

static void find(void)
{
#define FIND(member, name)                                                                         \
	if (!real.member)                                                                          \
		real.member = (__typeof__(real.member))kept(forward_find(name))
	FIND(shutdown, "nvmlShutdown");
	FIND(init, "nvmlInit_v2");
	FIND(count, "nvmlDeviceGetCount_v2");
	FIND(by_index, "nvmlDeviceGetHandleByIndex_v2");
	FIND(uuid, "nvmlDeviceGetUUID");
#undef FIND
}

static bool is_begun(void)
{
	unsigned count;
	return real.count && real.count(&count) != NVML_UNINITIALIZED;
}

/* Returns why calls of NVML do not come here, or NULL if all do, NVML is not begun, or it has been ended. */
HIDDEN const char *held_unseen(void)
{
	static char path[PATH_MAX];
	if (atomic_load(&held))
		return NULL;
	find();
	if (!is_begun())
		return NULL;
	if (libraries_each(look_for_needs, path))
		note_unseen("%.80s is linked with libnvidia-ml, so its calls cannot be held", path);
	if (!atomic_load(&theirs[AT_nvmlInit]) && !atomic_load(&theirs[AT_nvmlInit_v2]) &&
	    !atomic_load(&theirs[AT_nvmlInitWithFlags]))
		note_unseen("%s", "its calls of NVML cannot be held, because it was not started by tms run (TMS_CONTROL=1, with "
				  "libtms.so and libtms_reach.so preloaded)");
	return atomic_load(&has_unseen) == 2 ? unseen : NULL;
}

/* Notes the handles that NVML gives now. A device that is not known was given as it is now; one that is no longer there
 * becomes the device with its index. */
static void look(void)
{
	static struct device now[DEVICES];
	unsigned found = 0, count = 0;
	if (!real.by_index || !real.uuid || real.count(&count) != SUCCESS)
		return;
	for (unsigned i = 0; i < count && found < DEVICES; i++)
		if (real.by_index(i, &now[found].now) == SUCCESS &&
		    real.uuid(now[found].now, now[found].uuid, UUID) == SUCCESS)
			found++;
	bool other = false;
	for (int i = 0; i < device_count; i++) {
		if (i < (int)found)
			devices[i].now = now[i].now;
		for (unsigned at = 0; at < found; at++)
			if (strcmp(devices[i].uuid, now[at].uuid) == 0)
				devices[i].now = now[at].now;
		other |= devices[i].now != devices[i].given;
	}
	for (unsigned at = 0; at < found && device_count == (int)at; at++) {
		devices[device_count] = now[at];
		devices[device_count++].given = now[at].now;
	}
	atomic_store(&differ, other);
}

static void let_go(void)
{
	atomic_store(&held, 0);
	syscall(SYS_futex, &held, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

HIDDEN int held_end(double seconds)
{
	if (atomic_load(&held))
		return SUCCESS;
	find();
	fork_mark_set(&holding);
	atomic_store(&held, 1);
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int at; (at = in_progress()) < CALLS;) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if ((double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec) > seconds) {
			let_go();
			return error_fail(ERROR_NOT_READY,
					  "NVML cannot be ended for a snapshot: a thread of the program was in %s for %.1f s. Take "
					  "the snapshot when it has returned", calls[at].name, seconds);
		}
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	}
	begun = 0;
	if (real.shutdown && is_begun()) {
		look();
		while (begun < BEGUN_MOST && real.shutdown() == SUCCESS)
			begun++;
	}
	return SUCCESS;
}

HIDDEN int held_begin(void)
{
	int code = SUCCESS;
	if (!atomic_load(&held))
		return SUCCESS;
	for (unsigned i = 0; i < begun && code == SUCCESS; i++)
		code = real.init();
	if (begun && code == SUCCESS)
		look();
	begun = 0;
	let_go();
	if (code != SUCCESS)
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "NVML cannot be begun again in this process (its error %d), so the program's calls of it fail",
				  code);
	if (atomic_load(&differ) && atomic_load(&has_unseen) == 2)
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "NVML gives its devices other handles than before the snapshot, and %s: the program must ask "
				  "for them again", unseen);
	return SUCCESS;
}

AT_LOAD HIDDEN void held_load(void)
{
	fork_notify(NULL, NULL, in_child);
}
