/* listener has a process that uses CUDA or NVML, and has no pausable memory, listen for a client that asks for it: from
 * a call of cuInit or NVML on, a thread of C sleeps. Go does not start before, because a child that is forked after that
 * could have no pausable memory; CUDA programs often ask NVML for the devices, and then fork.
 *
 * A process with one thread gets none: it may fork, or change its namespace, as only such a process can. NVIDIA's driver
 * has a thread of its own in a process from cuInit or nvmlInit on.
 *
 * The client wakes the thread by a word in shared memory (internal/control/client), which it finds by its name in the
 * process's maps: neither a signal nor a descriptor of the program's can be in its way. The word stays mapped, because
 * a thread may be about to write to it. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK = 1 << 20 };

static _Atomic pid_t starts, has_listener; /* the process; a child of fork has none */
static _Atomic uint32_t *_Atomic asked;	  /* of the process has_listener */

static void *listen_once_asked(void *word)
{
	char inherited[16] = "";
	prctl(PR_GET_NAME, inherited);
	for (int state; (state = go_now()) != GO_AWAKE && state != GO_DEAD;) {
		prctl(PR_SET_NAME, "tms-listener");
		if (!atomic_exchange((_Atomic uint32_t *)word, 0)) {
			syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
			continue;
		}
		prctl(PR_SET_NAME, inherited); /* Go's threads inherit it */
		if (go_start() != SUCCESS) /* the next client tries again */
			error_log(tms_last_error());
	}
	return NULL;
}

static bool has_threads(void)
{
	struct stat threads; /* a folder with one folder for each thread */
	return stat("/proc/self/task", &threads) == 0 && threads.st_nlink > 3;
}

/* Returns the word on which the listener sleeps, or NULL. */
static void *start_listener(void)
{
	int descriptor = (int)syscall(SYS_memfd_create, "tms-listener", 1 /* MFD_CLOEXEC */);
	if (descriptor < 0)
		return NULL;
	void *word = ftruncate(descriptor, sizeof(uint32_t)) == 0
			     ? mmap(NULL, sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
			     : MAP_FAILED;
	close(descriptor);
	if (word == MAP_FAILED)
		return NULL;
	madvise(word, sizeof(uint32_t), MADV_DONTFORK);
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool made = pthread_create(&thread, &attributes, listen_once_asked, word) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (made)
		return word;
	munmap(word, sizeof(uint32_t)); /* which no one else knows yet */
	return NULL;
}

HIDDEN void listener_start(void)
{
	if (!region_config.control || go_now() != GO_ASLEEP)
		return;
	pid_t own = getpid(), before = atomic_load(&starts);
	if (before == own || !has_threads() || !atomic_compare_exchange_strong(&starts, &before, own))
		return;
	void *word = start_listener();
	if (!word) {
		atomic_store(&starts, 0); /* the next call tries again */
		return;
	}
	atomic_store(&asked, word);
	atomic_store(&has_listener, own);
	if (go_now() != GO_ASLEEP)
		listener_end();
}

HIDDEN void listener_end(void)
{
	_Atomic uint32_t *word = atomic_load(&has_listener) == getpid() ? atomic_load(&asked) : NULL;
	if (word) {
		atomic_store(word, 1);
		syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
}

static _Atomic bool cuda_begun;

HIDDEN bool listener_saw_cuda(void)
{
	return atomic_load(&cuda_begun);
}

EXPORT int cuInit(unsigned flags)
{
	int code = forward_cuInit(flags);
	if (code == SUCCESS) {
		atomic_store(&cuda_begun, true);
		listener_start();
	}
	return code;
}

static void in_child(void)
{
	atomic_store(&has_listener, 0);
	atomic_store(&starts, 0);
	atomic_store(&asked, NULL);
	atomic_store(&cuda_begun, false); /* CUDA does not survive fork */
}

AT_LOAD HIDDEN void listener_load(void)
{
	if (region_config.control)
		fork_notify(NULL, NULL, in_child);
}
