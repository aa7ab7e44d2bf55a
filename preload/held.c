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
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES = 64, UUID = 96, BEGUN_MOST = 1 << 16, ERROR_NOT_READY = 600, FORK_WAITS = 10 /* seconds */ };

static _Atomic uint32_t held;	  /* the number of the snapshot for which calls wait, or 0 */
static struct fork_mark holding; /* the process that holds them: a child has no thread that ends this */
static _Atomic pid_t beginner;	  /* the process in which a thread begins NVML again */
static unsigned begun;		  /* how often it is still to be begun again */
static _Atomic int at_work;	  /* what a thread does, which may wait for the loader's lock */
enum { NOTHING, ENDING, ENDING_IN_VAIN, BEGINNING };
static _Atomic int times;	  /* how often the program has begun it, by the functions below, and not ended it */

/* The handles of devices, by which calls translate. A look makes another table. There are three, because a snapshot looks
 * twice, and calls that went on without NVML may still read the table from before. */
struct handles {
	int count;
	bool differ; /* some given handle is no longer NVML's */
	struct device {
		char uuid[UUID];
		uintptr_t given, now; /* to the program, and by NVML */
	} devices[DEVICES];
};
enum { TABLES = 3 };
static struct handles tables[TABLES];
static struct handles *_Atomic handles; /* the last, or NULL */

/* One step of an end or a beginning, which a fork waits for: a child would have NVML's lock, and no thread that frees
 * it. Recursive, because NVML itself may fork while it begins (nvidia-modprobe). */
static pthread_mutex_t stepping;
static __thread bool fork_has_lock __attribute__((tls_model("initial-exec")));

/* NVML's own, from the library in which the program has found it. */
static struct {
	int (*init)(void), (*end)(void);
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

static bool begin_in_child(void);

static void enter(int at)
{
	for (;;) {
		atomic_fetch_add(&inside[at], 1);
		uint32_t snapshot = atomic_load(&held);
		if (likely(!snapshot))
			return;
		atomic_fetch_sub(&inside[at], 1);
		int error = errno;
		if (!fork_happened(&holding) || !begin_in_child()) /* a bare system call: a cancelled thread must not end here */
			syscall(SYS_futex, &held, FUTEX_WAIT_PRIVATE, snapshot, NULL, NULL, 0);
		errno = error;
	}
}

static void leave(int at)
{
	atomic_fetch_sub(&inside[at], 1);
}

static void make_lock(void)
{
	pthread_mutexattr_t recursive;
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&stepping, &recursive);
	pthread_mutexattr_destroy(&recursive);
}

/* The wait has an end, because NVML could wait for the loader's lock, which a thread that forks in a constructor has. */
static void before_fork(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += FORK_WAITS;
	fork_has_lock = pthread_mutex_timedlock(&stepping, &until) == 0;
}

static void after_fork_in_parent(void)
{
	if (fork_has_lock)
		pthread_mutex_unlock(&stepping);
}

static void after_fork_in_child(void)
{
	make_lock();
	atomic_store(&at_work, NOTHING); /* that thread is not here, nor are others */
	for (int at = 0; at < CALLS; at++)
		atomic_store(&inside[at], 0);
	if (begun > 0 && !atomic_load(&held))
		atomic_store(&held, 1); /* the parent's calls went on without NVML; the child's first begins it */
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
	const struct handles *known = atomic_load(&handles);
	for (int i = 0; unlikely(known && known->differ) && i < known->count; i++)
		if (known->devices[i].given == given)
			return known->devices[i].now;
	return given;
}

static void here(uintptr_t *found, unsigned count)
{
	const struct handles *known = atomic_load(&handles);
	for (unsigned at = 0; unlikely(known && known->differ) && found && at < count; at++)
		for (int i = 0; i < known->count; i++)
			if (known->devices[i].now == found[at]) {
				found[at] = known->devices[i].given;
				break;
			}
}

static void forget_handles(void)
{
	atomic_store(&handles, NULL);
}

/* Notes that a call of the program has begun NVML, or ended it. No handle from before its last end is one. */
static void note(int at)
{
	if (at == AT_nvmlInit || at == AT_nvmlInit_v2 || at == AT_nvmlInitWithFlags) {
		if (atomic_fetch_add(&times, 1) == 0)
			forget_handles();
	} else if (at == AT_nvmlShutdown && atomic_fetch_sub(&times, 1) == 1) {
		forget_handles();
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
			note(AT_##symbol);                                                         \
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

static void *init_asked(void)
{
	void *found = atomic_load(&theirs[AT_nvmlInit_v2]);
	if (!found)
		found = atomic_load(&theirs[AT_nvmlInitWithFlags]);
	return found ? found : atomic_load(&theirs[AT_nvmlInit]);
}

static int look_for_init(struct dl_phdr_info *info, size_t size, void *init)
{
	struct range range = {.address = (uintptr_t)init};
	struct symbols symbols;
	if (!look_around(info, size, &range) || !read_symbols(info->dlpi_addr, dynamic_of(info), &symbols))
		return 0;
#define FIND(member, name) real.member = (__typeof__(real.member))defined(&symbols, name)
	FIND(init, "nvmlInit_v2");
	FIND(count, "nvmlDeviceGetCount_v2");
	FIND(by_index, "nvmlDeviceGetHandleByIndex_v2");
	FIND(uuid, "nvmlDeviceGetUUID");
	FIND(end, "nvmlShutdown");
#undef FIND
	return 1;
}

/* Finds them without dlsym, for which a thread that waits for the end of a pause may have the loader's lock. The
 * library stays loaded, because the program has found a function in it (nvml_function). */
static void find(void)
{
	void *init = init_asked();
	if (init && !real.end)
		libraries_each(look_for_init, init);
}

static int look_for_file(struct dl_phdr_info *info, size_t size, void *name)
{
	(void)size;
	return is_library(file_of(info->dlpi_name), name);
}

/* Returns why calls of NVML do not come here, or NULL if all do, NVML is not begun, or it has been ended. It asks no
 * function of NVML: a thread may wait with NVML's lock. */
HIDDEN const char *held_unseen(void)
{
	static char path[PATH_MAX];
	if (atomic_load(&held) || !libraries_each(look_for_file, "libnvidia-ml"))
		return NULL;
	bool linked = libraries_each(look_for_needs, path);
	if (linked)
		note_unseen("%.80s is linked with libnvidia-ml, so its calls cannot be held", path);
	if (!init_asked() && !linked && !libraries_each(look_for_file, "libtms_reach"))
		note_unseen("%s", "its calls of NVML cannot be held, because it was not started by tms run (TMS_CONTROL=1, with "
				  "libtms.so and libtms_reach.so preloaded)");
	return (linked || !init_asked() || atomic_load(&times) > 0) && atomic_load(&has_unseen) == 2 ? unseen : NULL;
}

/* Notes the handles that NVML gives now. A device that is not known was given as it is now; one that is no longer there
 * becomes the device with its index. before says that NVML is about to be ended. */
static void look(bool before)
{
	static struct device now[DEVICES];
	static unsigned made;
	unsigned found = 0, count = 0;
	if (!real.by_index || !real.uuid || !real.count || real.count(&count) != SUCCESS)
		return;
	for (unsigned i = 0; i < count && found < DEVICES; i++)
		if (real.by_index(i, &now[found].now) == SUCCESS &&
		    real.uuid(now[found].now, now[found].uuid, UUID) == SUCCESS)
			found++;
	struct handles *known = atomic_load(&handles), *next = &tables[made++ % TABLES];
	const struct handles *kept = known;
	for (int i = 0; before && kept && i < kept->count; i++)
		for (unsigned at = 0; at < found; at++)
			if (strcmp(known->devices[i].uuid, now[at].uuid) == 0 && known->devices[i].now != now[at].now)
				kept = NULL; /* the program has begun NVML since, and has other handles */
	next->count = 0;
	if (kept)
		*next = *kept;
	next->differ = false;
	for (int i = 0; i < next->count; i++) {
		struct device *device = &next->devices[i];
		if (i < (int)found)
			device->now = now[i].now;
		for (unsigned at = 0; at < found; at++)
			if (strcmp(device->uuid, now[at].uuid) == 0)
				device->now = now[at].now;
		next->differ |= device->now != device->given;
	}
	for (unsigned at = 0; at < found && next->count == (int)at; at++) {
		next->devices[at] = now[at];
		next->devices[next->count++].given = now[at].now;
	}
	atomic_compare_exchange_strong(&handles, &known, next); /* else the program has ended NVML */
}

static void wake(void)
{
	syscall(SYS_futex, &held, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void let_go(void)
{
	atomic_store(&held, 0);
	wake();
}

static bool end_once(void)
{
	pthread_mutex_lock(&stepping);
	bool ended = real.end() == SUCCESS;
	begun += ended;
	pthread_mutex_unlock(&stepping);
	return ended;
}

static int begin(void);

HIDDEN int held_hold(double seconds)
{
	static uint32_t snapshot = 1;
	if (atomic_load(&at_work) != NOTHING)
		return error_fail(ERROR_NOT_READY, "NVML is still being ended or begun again for an earlier snapshot. Take this "
						   "one later");
	if (atomic_load(&held))
		return SUCCESS;
	begun = 0;
	find();
	fork_mark_set(&holding);
	atomic_store(&held, snapshot += 2); /* which is never 0 */
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
	if (real.end && real.init && atomic_load(&times) > 0)
		atomic_store(&at_work, ENDING);
	return SUCCESS;
}

HIDDEN int held_end(void)
{
	int doing = ENDING;
	if (atomic_load(&at_work) == NOTHING)
		return SUCCESS;
	pthread_mutex_lock(&stepping);
	look(true);
	pthread_mutex_unlock(&stepping);
	while (atomic_load(&at_work) == ENDING && begun < BEGUN_MOST && end_once())
		;
	if (atomic_compare_exchange_strong(&at_work, &doing, NOTHING))
		return SUCCESS;
	int code = begin();
	atomic_store(&at_work, NOTHING);
	return code;
}

HIDDEN bool held_end_in_vain(void)
{
	int doing = ENDING;
	return atomic_compare_exchange_strong(&at_work, &doing, ENDING_IN_VAIN);
}

static int begin_once(void)
{
	pthread_mutex_lock(&stepping);
	int code = real.init();
	if (code == SUCCESS && --begun == 0)
		look(false);
	pthread_mutex_unlock(&stepping);
	return code;
}

/* The caller is the only thread that begins NVML. */
static int begin(void)
{
	int code = SUCCESS;
	while (begun > 0 && code == SUCCESS)
		code = begin_once();
	begun = 0;
	let_go();
	if (code != SUCCESS)
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "NVML cannot be begun again in this process (its error %d), so the program's calls of it fail",
				  code);
	return SUCCESS;
}

/* Reports whether this thread is the one that begins NVML again in this process. */
static bool claim(void)
{
	pid_t own = getpid(), by = atomic_load(&beginner);
	return by != own && atomic_compare_exchange_strong(&beginner, &by, own);
}

/* Begins NVML in a child that was forked while calls wait, unless another thread does. */
static bool begin_in_child(void)
{
	if (!claim())
		return false;
	if (atomic_load(&held) && fork_happened(&holding))
		begin();
	atomic_store(&beginner, 0);
	return true;
}

HIDDEN int held_begin(void)
{
	int nothing = NOTHING;
	if (!atomic_load(&held) || !atomic_compare_exchange_strong(&at_work, &nothing, BEGINNING))
		return SUCCESS;
	int code = SUCCESS;
	if (claim()) {
		code = begin();
		atomic_store(&beginner, 0);
	}
	atomic_store(&at_work, NOTHING);
	if (code != SUCCESS)
		return code;
	const struct handles *known = atomic_load(&handles);
	if (known && known->differ && atomic_load(&has_unseen) == 2)
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "NVML gives its devices other handles than before the snapshot, and %s: the program must ask "
				  "for them again", unseen);
	return SUCCESS;
}

HIDDEN uint32_t held_snapshot(void)
{
	return atomic_load(&held);
}

/* By the snapshot's number, because its thread may have let the calls go, and those of another snapshot wait now. */
HIDDEN bool held_go_on(uint32_t snapshot)
{
	if (atomic_load(&at_work) == NOTHING || !snapshot || !atomic_compare_exchange_strong(&held, &snapshot, 0))
		return false;
	wake();
	return true;
}

AT_LOAD HIDDEN void held_load(void)
{
	if (!region_config.control)
		return;
	make_lock();
	fork_notify(before_fork, after_fork_in_parent, after_fork_in_child);
}
