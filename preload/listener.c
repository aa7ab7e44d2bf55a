/* listener has a process that uses CUDA or NVML, and has no pausable memory, listen for a client that asks for it: from
 * its first call of cuInit or nvmlInit on, a thread of C sleeps. Go does not start before, because a child that is
 * forked after that could have no pausable memory; CUDA programs often ask NVML for the devices, and then fork.
 *
 * The client wakes the thread by a word in shared memory (internal/control/client), which it finds by its name in the
 * process's maps: neither a signal nor a descriptor of the program's can be in its way. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK = 1 << 20 };

static _Atomic pid_t has_listener; /* a child of fork has none */
static _Atomic uint32_t *_Atomic asked;

static void *listen_once_asked(void *word)
{
	prctl(PR_SET_NAME, "tms-listener");
	while (!atomic_load((_Atomic uint32_t *)word) || (go_now() == GO_ASLEEP && go_start() != SUCCESS)) {
		if (atomic_exchange((_Atomic uint32_t *)word, 0)) /* Go could not start: the next client tries again */
			error_log(tms_last_error());
		syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
	}
	atomic_store(&asked, NULL);
	munmap(word, sizeof(uint32_t));
	return NULL;
}

static bool start_listener(void)
{
	int descriptor = (int)syscall(SYS_memfd_create, "tms-listener", 1 /* MFD_CLOEXEC */);
	if (descriptor < 0)
		return false;
	void *word = ftruncate(descriptor, sizeof(uint32_t)) == 0
			     ? mmap(NULL, sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
			     : MAP_FAILED;
	close(descriptor);
	if (word == MAP_FAILED)
		return false;
	madvise(word, sizeof(uint32_t), MADV_DONTFORK);
	atomic_store(&asked, word);
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
	if (!made) {
		atomic_store(&asked, NULL);
		munmap(word, sizeof(uint32_t));
	}
	return made;
}

HIDDEN void listener_start(void)
{
	pid_t own = getpid(), has = atomic_load(&has_listener);
	if (!region_config.control || has == own || go_now() != GO_ASLEEP ||
	    !atomic_compare_exchange_strong(&has_listener, &has, own))
		return;
	if (!start_listener())
		atomic_store(&has_listener, 0); /* the next call tries again */
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
