// The gate every driver function passes: call counting, planned failures, preconditions.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cudasim.h"
#include "base/sim.h"

enum needs { ANY, INIT, CTX };

static const struct {
	const char *name, *symbol;
	enum needs needs;
} functions[] = {
#define X(name, symbol, since, needs) {#name, #symbol, needs},
	DRIVER_FUNCTIONS(X)
#undef X
};

// All versions of a function share one counter and one set of planned failures: that of
// the first of them.
static int family_of[FUNCTION_COUNT];
static uint64_t calls[FUNCTION_COUNT];
static int planned[FUNCTION_COUNT];

struct failure {
	struct failure *next;
	int family, remaining;
	CUresult code;
};
static struct failure *failures;
static uint64_t fired;

struct simulator sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_handle = 0x10000};

void sim_complain(const char *format, ...)
{
	char line[512] = "cudasim: ";
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(line + 9, sizeof line - 10, format, arguments);
	va_end(arguments);
	strcat(line, "\n");
	ssize_t ignored = write(2, line, strlen(line));
	(void)ignored;
}

struct thread_state *thread_state(void)
{
	static _Thread_local struct thread_state state;
	if (state.epoch != sim.epoch)
		state = (struct thread_state){.epoch = sim.epoch, .in_host_function = state.in_host_function};
	return &state;
}

int thread_id(void)
{
	return (int)syscall(SYS_gettid);
}

void sim_start(void)
{
	if (sim.configured)
		return;
	for (int i = 0; i < FUNCTION_COUNT; i++) {
		int family = 0;
		while (strcmp(functions[family].name, functions[i].name))
			family++;
		family_of[i] = family;
	}
	sim_configure();
}

// -1 if there is no such function.
static int find_family(const char *name, size_t length)
{
	for (int i = 0; i < FUNCTION_COUNT; i++)
		if ((strlen(functions[i].name) == length && !strncmp(functions[i].name, name, length)) ||
		    (strlen(functions[i].symbol) == length && !strncmp(functions[i].symbol, name, length)))
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
		// Of two planned for the same call the second hits the next one.
		if (failure->family != family || failure->remaining > 0 || code != CUDA_SUCCESS) {
			slot = &failure->next;
			continue;
		}
		code = failure->code;
		*slot = failure->next;
		free(failure);
		planned[family]--;
		fired++;
	}
	return code;
}

static CUresult enter(enum function function)
{
	sim_start();
	int family = family_of[function];
	calls[family]++;
	enum needs needs = functions[function].needs;
	if (sim.forked && (needs != ANY || function == FN_cuInit))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (planned[family]) {
		CUresult code = planned_failure(family);
		if (code != CUDA_SUCCESS)
			return code;
	}
	if (needs == ANY)
		return CUDA_SUCCESS;
	if (!sim.initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (thread_state()->in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	return needs == CTX ? context_health() : CUDA_SUCCESS;
}

CUresult sim_enter(enum function function)
{
	pthread_mutex_lock(&sim.lock);
	CUresult result = enter(function);
	if (result != CUDA_SUCCESS)
		pthread_mutex_unlock(&sim.lock);
	return result;
}

void sim_leave(const int *guard)
{
	(void)guard;
	pthread_mutex_unlock(&sim.lock);
}

static void drop_failures(int family)
{
	for (struct failure **slot = &failures; *slot;) {
		struct failure *failure = *slot;
		if (family >= 0 && failure->family != family) {
			slot = &failure->next;
			continue;
		}
		*slot = failure->next;
		planned[failure->family]--;
		free(failure);
	}
}

static bool plan(const char *name, size_t length, long nth, long code)
{
	int family = find_family(name, length);
	if (family < 0) {
		sim_complain("no driver function %.*s to fail", (int)length, name);
		return false;
	}
	if (code == 0) {
		drop_failures(family);
		return true;
	}
	struct failure *failure = malloc(sizeof *failure);
	if (nth < 1 || !failure) {
		sim_complain("call %ld of %.*s can't be made to fail", nth, (int)length, name);
		free(failure);
		return false;
	}
	*failure = (struct failure){failures, family, (int)nth, (CUresult)code};
	failures = failure;
	planned[family]++;
	return true;
}

void failures_parse(const char *text)
{
	while (*text) {
		size_t length = strcspn(text, ",");
		const char *colon = memchr(text, ':', length);
		long nth = 0, code = 0;
		int used = 0;
		if (colon && sscanf(colon, ":%ld:%ld%n", &nth, &code, &used) == 2 &&
		    colon + used == text + length && code > 0)
			plan(text, (size_t)(colon - text), nth, code);
		else
			sim_complain("CUDASIM_FAIL: %.*s is not function:nth:code; ignored", (int)length,
				     text);
		text += length;
		text += *text == ',';
	}
}

void failures_reset(void)
{
	drop_failures(-1);
	memset(calls, 0, sizeof calls);
	fired = 0;
}

EXPORT void cudasim_fail(const char *function, int nth, int code)
{
	pthread_mutex_lock(&sim.lock);
	sim_start();
	plan(function, strlen(function), nth, code);
	pthread_mutex_unlock(&sim.lock);
}

EXPORT void cudasim_clear_failures(void)
{
	pthread_mutex_lock(&sim.lock);
	sim_start();
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

static uint64_t device_stat(const char *number, char which)
{
	char *end;
	unsigned long device = strtoul(number, &end, 10);
	if (end == number || *end || device >= (unsigned long)sim.device_count)
		return UINT64_MAX;
	const struct device *d = &sim.devices[device];
	return which == 't' ? d->total : which == 'u' ? d->used : d->total - d->used;
}

static uint64_t stat(const char *name)
{
	const struct statistics *s = &sim.statistics;
	const struct {
		const char *name;
		uint64_t value;
	} values[] = {
		{"handles", s->handles},
		{"handle_bytes", s->handle_bytes},
		{"reservations", sim.reservations.count},
		{"reserved_bytes", s->reserved_bytes},
		{"mappings", s->mappings},
		{"mapped_bytes", s->mapped_bytes},
		{"allocations", s->allocations},
		{"allocation_bytes", s->allocation_bytes},
		{"registrations", s->registrations},
		{"registered_bytes", s->registered_bytes},
		{"host_allocations", s->host_allocations},
		{"host_bytes", s->host_bytes},
		{"pinned_bytes", s->registered_bytes + s->host_bytes},
		{"contexts", s->objects[CONTEXT]},
		{"streams", s->objects[STREAM]},
		{"events", s->objects[EVENT]},
		{"graphs", s->objects[GRAPH]},
		{"graph_execs", s->objects[GRAPH_EXEC]},
		{"libraries", s->objects[LIBRARY]},
		{"pending", queue_pending()},
		{"devices", (uint64_t)sim.device_count},
		{"granularity", sim.granularity},
	};
	for (size_t i = 0; i < sizeof values / sizeof *values; i++)
		if (!strcmp(values[i].name, name))
			return values[i].value;
	if (!strncmp(name, "calls:", 6)) {
		int family = find_family(name + 6, strlen(name + 6));
		return family < 0 ? UINT64_MAX : calls[family];
	}
	if (!strncmp(name, "total:", 6))
		return device_stat(name + 6, 't');
	if (!strncmp(name, "used:", 5))
		return device_stat(name + 5, 'u');
	if (!strncmp(name, "free:", 5))
		return device_stat(name + 5, 'f');
	return UINT64_MAX;
}

EXPORT uint64_t cudasim_stat(const char *name)
{
	pthread_mutex_lock(&sim.lock);
	sim_start();
	uint64_t result = stat(name);
	pthread_mutex_unlock(&sim.lock);
	return result;
}
