/* pytorch has PyTorch's allocator give memory back that it only caches, before a pause would save it. The program need
 * not cooperate: a thread of its own calls what torch.cuda.empty_cache() calls, once Python lets it. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Python's functions, in their stable interface. */
#define FUNCTIONS(X)                                                                               \
	X(int, Py_IsInitialized, (void))                                                           \
	X(int, PyGILState_Ensure, (void))                                                          \
	X(void, PyGILState_Release, (int))                                                         \
	X(void *, PyImport_GetModuleDict, (void))                                                  \
	X(void *, PyDict_GetItemString, (void *, const char *))                                    \
	X(void *, PyObject_GetAttrString, (void *, const char *))                                  \
	X(void *, PyObject_CallObject, (void *, void *))                                           \
	X(void, Py_DecRef, (void *))                                                               \
	X(void, PyErr_Clear, (void))

struct python {
#define X(type, name, parameters) type(*name) parameters;
	FUNCTIONS(X)
#undef X
};

static bool find(struct python *python)
{
#define X(type, name, parameters)                                                                  \
	python->name = (type(*) parameters)dlsym(RTLD_DEFAULT, #name);                             \
	if (!python->name)                                                                         \
		return false;
	FUNCTIONS(X)
#undef X
	return python->Py_IsInitialized();
}

/* With Python's lock held. */
static void empty(const struct python *python)
{
	void *module = python->PyDict_GetItemString(python->PyImport_GetModuleDict(), "torch._C");
	void *function = module ? python->PyObject_GetAttrString(module, "_cuda_emptyCache") : NULL;
	void *result = function ? python->PyObject_CallObject(function, NULL) : NULL;
	if (result)
		python->Py_DecRef(result);
	else
		python->PyErr_Clear();
	if (function)
		python->Py_DecRef(function);
}

/* Makes a device current that has a context. PyTorch waits for events and frees memory of all devices, and a thread that
 * has chosen none would get a context on device 0. */
static bool choose_device(void)
{
	unsigned flags = 0;
	for (int device = 0, active = 0; forward_cuDevicePrimaryCtxGetState(device, &flags, &active) == SUCCESS; device++)
		if (active)
			return forward_cudaSetDevice(device) == SUCCESS;
	return false;
}

struct emptying {
	_Atomic int done; /* 1 in the end; a futex */
	_Atomic bool claimed; /* by the thread, to empty the cache, or by the caller, to give up */
	_Atomic int users;
};

static void release(struct emptying *of)
{
	if (atomic_fetch_sub(&of->users, 1) == 1)
		free(of);
}

static _Atomic bool busy; /* a thread may be waiting for Python still */

static void *run(void *argument)
{
	struct emptying *of = argument;
	struct python python;
	if (find(&python) && choose_device()) { /* it may wait at the gate, so Python's lock comes after that */
		int state = python.PyGILState_Ensure(); /* may wait as long as the program likes */
		if (!atomic_exchange(&of->claimed, true))
			empty(&python);
		python.PyGILState_Release(state);
	}
	atomic_store(&busy, false);
	atomic_store(&of->done, 1);
	syscall(SYS_futex, &of->done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	release(of);
	return NULL;
}

static bool start(struct emptying *of)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	sigdelset(&all, SIGSYS); /* a sandbox's, which answers system calls */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool started = pthread_create(&thread, &attributes, run, of) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return started;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Waits until the thread is done, or until the caller has claimed in its place. A thread that has claimed may hold
 * Python's lock, and could stop at the gate with it, so it gets more time. The time to claim is counted in short waits:
 * on a busy machine these are as late as the thread is. */
static void await(struct emptying *of, double claim, double end)
{
	const int in_a_second = 100;
	const struct timespec wait = {0, 1000000000 / in_a_second};
	double until = now() + end;
	int waits = (int)(claim * in_a_second);
	while (!atomic_load(&of->done) && now() < until) {
		if (syscall(SYS_futex, &of->done, FUTEX_WAIT_PRIVATE, 0, &wait, NULL, 0) == 0 || errno != ETIMEDOUT)
			continue;
		if (waits-- <= 0 && !atomic_exchange(&of->claimed, true))
			return;
	}
	atomic_store(&of->claimed, true);
}

HIDDEN void pytorch_empty_cache(double claim, double end)
{
	if (atomic_exchange(&busy, true))
		return;
	struct emptying *of = calloc(1, sizeof *of);
	if (!of) {
		atomic_store(&busy, false);
		return;
	}
	atomic_store(&of->users, 2);
	if (start(of)) {
		await(of, claim, end);
	} else {
		release(of);
		atomic_store(&busy, false);
	}
	release(of);
}
