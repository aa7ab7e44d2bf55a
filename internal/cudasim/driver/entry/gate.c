// The gate that every driver function passes: it counts calls, applies planned failures, checks preconditions.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cudasim.h"
#include "base/process.h"
#include "entry/gate.h"

enum needs { ANY, INIT, CTX };

static const struct {
	const char *name, *symbol;
	enum needs needs;
} functions[] = {
#define X(since, needs, name, version, ...) {#name, #name #version, needs},
	DRIVER_FUNCTIONS(X, X, X)
#undef X
};

// All versions of a function share the counter and the planned failures of the first.
static int family_of[FUNCTION_COUNT];
static uint64_t calls[FUNCTION_COUNT];

// As codes: the call kills the process; it stands until failures are dropped, and then goes on.
#define KILLED ((CUresult)-1)
#define STANDS ((CUresult)-2)

struct failure {
	struct failure *next;
	int family, remaining;
	CUresult code;
};
static struct failure *failures;
static uint64_t fired, drops;
static pthread_cond_t dropped = PTHREAD_COND_INITIALIZER;
static bool started; // the environment was read

// Returns -1 if there is no such function.
static int find_family(const char *name)
{
	for (int i = 0; i < FUNCTION_COUNT; i++)
		if (!strcmp(functions[i].name, name) || !strcmp(functions[i].symbol, name))
			return family_of[i];
	return -1;
}

static CUresult planned_failure(int family)
{
	CUresult code = CUDA_SUCCESS;
	for (struct failure **slot = &failures; *slot;) {
		struct failure *failure = *slot;
		if (failure->family == family)
			failure->remaining--;
		// If two failures are planned for one call, the second hits the next call.
		if (failure->family != family || failure->remaining > 0 || code != CUDA_SUCCESS) {
			slot = &failure->next;
			continue;
		}
		code = failure->code;
		*slot = failure->next;
		free(failure);
		fired++;
		if (code == KILLED)
			kill(getpid(), SIGKILL);
	}
	if (code != STANDS)
		return code;
	for (uint64_t before = drops; drops == before;)
		pthread_cond_wait(&dropped, &sim.lock);
	return CUDA_SUCCESS;
}

static void drop_failures(int family)
{
	drops++;
	pthread_cond_broadcast(&dropped);
	for (struct failure **slot = &failures; *slot;) {
		struct failure *failure = *slot;
		if (family >= 0 && failure->family != family) {
			slot = &failure->next;
			continue;
		}
		*slot = failure->next;
		free(failure);
	}
}

static void plan(const char *name, long nth, long code)
{
	int family = find_family(name);
	if (family < 0) {
		sim_complain("no driver function %s to fail", name);
		return;
	}
	if (code == 0) {
		drop_failures(family);
		return;
	}
	struct failure *failure = malloc(sizeof *failure);
	if (nth < 1 || !failure) {
		sim_complain("call %ld of %s can't be made to fail", nth, name);
		free(failure);
		return;
	}
	*failure = (struct failure){failures, family, (int)nth, (CUresult)code};
	failures = failure;
}

static void failures_parse(char *text)
{
	char *rest, name[64];
	for (char *entry = strtok_r(text, ",", &rest); entry; entry = strtok_r(NULL, ",", &rest)) {
		long nth = 0, code = 0;
		int used = 0;
		if (sscanf(entry, "%63[^:]:%ld:kill%n", name, &nth, &used) == 2 && used > 0 && !entry[used])
			plan(name, nth, (long)KILLED);
		else if (sscanf(entry, "%63[^:]:%ld:%ld%n", name, &nth, &code, &used) == 3 && !entry[used] && code > 0)
			plan(name, nth, code);
		else
			sim_complain("CUDASIM_FAIL: %s is not function:nth:code; ignored", entry);
	}
}

void gate_start(void)
{
	if (started)
		return;
	started = true;
	for (int i = 0; i < FUNCTION_COUNT; i++) {
		int family = 0;
		while (strcmp(functions[family].name, functions[i].name))
			family++;
		family_of[i] = family;
	}
	settings_read();
	memory_start();
	const char *text = getenv("CUDASIM_FAIL");
	char *copy = text ? strdup(text) : NULL;
	if (copy)
		failures_parse(copy);
	free(copy);
}

bool gate_reset(void)
{
	bool was = started;
	started = false;
	drop_failures(-1);
	memset(calls, 0, sizeof calls);
	fired = 0;
	return was;
}

static CUresult enter(enum driver_function function)
{
	gate_start();
	int family = family_of[function];
	calls[family]++;
	enum needs needs = functions[function].needs;
	if (sim.forked && (needs != ANY || function == FN_cuInit))
		return CUDA_ERROR_NOT_INITIALIZED;
	TRY(planned_failure(family));
	if (needs == ANY)
		return CUDA_SUCCESS;
	if (!sim.initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (thread_state()->in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	return needs == CTX ? context_health() : CUDA_SUCCESS;
}

// Calls that the driver's lock does not stop (seen with driver 580, after the device was given work). Some read what
// the device wrote, on pages that a checkpoint takes away. The driver refuses the others.
static bool reads_pages(enum driver_function function)
{
	switch (function) {
	case FN_cuStreamQuery:
	case FN_cuStreamSynchronize:
	case FN_cuEventQuery:
	case FN_cuEventSynchronize:
	case FN_cuEventElapsedTime:
	case FN_cuEventElapsedTime_v2:
	case FN_cuCtxSynchronize:
	case FN_cuMemPoolDestroy:
		return true;
	default:
		return false;
	}
}

static bool is_refused(enum driver_function function)
{
	return function == FN_cuMemGetInfo_v2 || function == FN_cuDeviceGetName || function == FN_cuIpcGetMemHandle;
}

// Returns CUDA_SUCCESS if the process's state lets the call go on; *inside: it is counted.
static CUresult pass_lock(enum driver_function function, bool *inside)
{
	if (!reads_pages(function) && !is_refused(function))
		return process_enter(inside) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
	switch (process_pass(inside)) {
	case CU_PROCESS_STATE_CHECKPOINTED:
		if (is_refused(function))
			return CUDA_ERROR_OPERATING_SYSTEM;
		process_read_taken();
		return CUDA_ERROR_UNKNOWN;
	case CU_PROCESS_STATE_FAILED:
		return CUDA_ERROR_UNKNOWN;
	default:
		return CUDA_SUCCESS;
	}
}

// A host function's calls belong to the call that waits for it.
static __thread bool counted __attribute__((tls_model("initial-exec")));

CUresult gate_enter(enum driver_function function)
{
	bool count = functions[function].needs != ANY && !counted;
	if (count)
		TRY(pass_lock(function, &count));
	pthread_mutex_lock(&sim.lock);
	CUresult result = enter(function);
	if (result == CUDA_SUCCESS) {
		counted |= count;
		return CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&sim.lock);
	if (count)
		process_leave();
	return result;
}

void gate_leave(const int *guard)
{
	(void)guard;
	pthread_mutex_unlock(&sim.lock);
	// A host function's own calls do not leave, because the counted call waits for the function.
	if (counted && !thread_state()->in_host_function) {
		counted = false;
		process_leave();
	}
}

uint64_t gate_calls(const char *name)
{
	int family = find_family(name);
	return family < 0 ? UINT64_MAX : calls[family];
}

EXPORT void cudasim_fail(const char *function, int nth, int code)
{
	pthread_mutex_lock(&sim.lock);
	gate_start();
	plan(function, nth, code);
	pthread_mutex_unlock(&sim.lock);
}

EXPORT void cudasim_clear_failures(void)
{
	pthread_mutex_lock(&sim.lock);
	gate_start();
	drop_failures(-1);
	pthread_mutex_unlock(&sim.lock);
}

EXPORT uint64_t cudasim_failures_fired(void)
{
	pthread_mutex_lock(&sim.lock);
	uint64_t result = fired;
	pthread_mutex_unlock(&sim.lock);
	return result;
}
