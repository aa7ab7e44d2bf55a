/* device follows what happens to devices and contexts: a device begins to use another device's memory, contexts are
 * made and destroyed, devices are reset. capture.c has the captures that end with a context. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

#include <sched.h>

/* cudaMalloc's memory can be copied with any device current; mapped memory must first get access for each device. */
static int grant(void)
{
	return IN_GO(tmsGrant());
}

static bool segments_exist(void)
{
	return atomic_load_explicit(&arena_count, memory_order_acquire) > 0 && go_now() == GO_AWAKE;
}

/* Devices that were chosen after there were segments, and so have access. */
static _Atomic uint64_t chosen;

static uint64_t bit_of(int device)
{
	return device >= 0 && device < 64 ? (uint64_t)1 << device : 0;
}

EXPORT int cudaSetDevice(int device)
{
	uint64_t bit = bit_of(device);
	if (likely(!segments_exist() || atomic_load_explicit(&chosen, memory_order_relaxed) & bit))
		return forward_cudaSetDevice(device);
	int code = forward_cudaSetDevice(device);
	if (code == SUCCESS && grant() == SUCCESS)
		atomic_fetch_or(&chosen, bit);
	return code;
}

#define GRANTS(api, symbol, type)                                                                 \
	EXPORT int symbol(type peer, unsigned flags)                                               \
	{                                                                                          \
		int code = forward_##symbol(peer, flags);                                          \
		return code == SUCCESS && segments_exist() ? RESULT_OF(api, grant()) : code;       \
	}
GRANTS(cuda, cudaDeviceEnablePeerAccess, int)
GRANTS(cu, cuCtxEnablePeerAccess, void *)

/* Contexts that the program makes itself, so that a pause can wait for what they run. Contexts made by functions that
 * were found with dlsym are unknown, so memory is refused in them.
 *
 * The table has no lock, which a fork could leave held. A thread uses a context only while it has acquired it, and a
 * context is destroyed only when no thread uses it. */
enum { CONTEXTS_MAX = 1024, CHANGING = 1 };
static struct known {
	_Atomic uintptr_t context; /* 0 in a free slot, or CHANGING */
	_Atomic int users;
	int device;
} contexts[CONTEXTS_MAX];
HIDDEN int context_slots; /* how many of them were ever used */

static int note(int code, void **made, int device)
{
	if (code != SUCCESS || !made)
		return code;
	for (int i = 0; i < CONTEXTS_MAX; i++) {
		uintptr_t none = 0;
		if (!atomic_compare_exchange_strong(&contexts[i].context, &none, CHANGING))
			continue;
		contexts[i].device = device;
		atomic_store(&contexts[i].context, (uintptr_t)*made);
		int slots = __atomic_load_n(&context_slots, __ATOMIC_RELAXED);
		while (slots <= i && !__atomic_compare_exchange_n(&context_slots, &slots, i + 1, false, __ATOMIC_SEQ_CST,
								  __ATOMIC_SEQ_CST))
			;
		break;
	} /* memory is refused in a context that found no entry */
	if (segments_exist())
		(void)grant();
	return code;
}

HIDDEN uintptr_t context_acquire(int slot, int device)
{
	struct known *e = &contexts[slot];
	atomic_fetch_add(&e->users, 1);
	uintptr_t context = atomic_load(&e->context);
	if (context > CHANGING && e->device == device)
		return context;
	atomic_fetch_sub(&e->users, 1);
	return 0;
}

HIDDEN void context_release(int slot)
{
	atomic_fetch_sub(&contexts[slot].users, 1);
}

#define CREATES(symbol, parameters, arguments)                                                     \
	EXPORT int symbol parameters                                                               \
	{                                                                                          \
		return note(forward_##symbol arguments, context, device);                          \
	}
CREATES(cuCtxCreate_v2, (void **context, unsigned flags, int device), (context, flags, device))
CREATES(cuCtxCreate_v3, (void **context, void *affinities, int count, unsigned flags, int device),
	(context, affinities, count, flags, device))
CREATES(cuCtxCreate_v4, (void **context, void *parameters, unsigned flags, int device),
	(context, parameters, flags, device))

static void forget_context(const void *context)
{
	watch_context_ended(context);
	captures_forget(context);
}

EXPORT int cuCtxDestroy_v2(void *context)
{
	struct known *found = NULL;
	int slots = __atomic_load_n(&context_slots, __ATOMIC_SEQ_CST);
	for (int i = 0; i < slots && !found; i++) {
		uintptr_t mine = (uintptr_t)context;
		if (mine > CHANGING && atomic_compare_exchange_strong(&contexts[i].context, &mine, CHANGING))
			found = &contexts[i];
	}
	if (found && segments_exist()) {
		atomic_store(&found->context, (uintptr_t)context); /* the engine waits for it once more */
		(void)IN_GO((tmsFreeContext(context), SUCCESS));
		atomic_store(&found->context, CHANGING);
	}
	while (found && atomic_load(&found->users) > 0)
		sched_yield();
	int code = forward_cuCtxDestroy_v2(context);
	if (code == SUCCESS)
		forget_context(context);
	if (found)
		atomic_store(&found->context, code == SUCCESS ? 0 : (uintptr_t)context);
	return code;
}

/* The end of a device's context: our memory there goes before it, and our notes after it. */

/* Returns the device's context if it exists, and captures may be in progress in it or its memory is counted; else
 * NULL. */
static void *context_to_end(int device)
{
	void *context = NULL;
	unsigned flags = 0;
	int active = 0;
	if ((capturing() || watch_is_on(WATCH_COUNTS)) && forward_cuDevicePrimaryCtxGetState(device, &flags, &active) == SUCCESS &&
	    active && forward_cuDevicePrimaryCtxRetain(&context, device) == SUCCESS)
		forward_cuDevicePrimaryCtxRelease_v2(device);
	return context;
}

static void forget(int device, const void *context)
{
	atomic_fetch_and(&chosen, ~bit_of(device));
	if (context)
		forget_context(context);
}

#define RESETTING(device, plain)                                                                   \
	({                                                                                         \
		if (go_now() == GO_AWAKE)                                                          \
			(void)IN_GO((tmsReset(device), SUCCESS));                                  \
		void *context_ = context_to_end(device);                                           \
		watch_device_resets(device);                                                     \
		int code_ = (plain);                                                               \
		if (code_ == SUCCESS)                                                              \
			forget(device, context_);                                                  \
		code_;                                                                             \
	})

EXPORT int cudaDeviceReset(void)
{
	int device = 0;
	const struct forward_copy *copy = forward_copy_of(CALLER());
	int (*reset)(void) = copy ? copy->reset : forward_cudaDeviceReset;
	if ((go_now() != GO_AWAKE && !capturing() && !watch_is_on(WATCH_COUNTS)) ||
	    forward_cudaGetDevice(&device) != SUCCESS)
		return reset();
	return RESETTING(device, reset());
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
	return RESETTING(device, forward_cuDevicePrimaryCtxReset_v2(device));
}

/* Where there are segments the host never holds the last reference, because the engine keeps one of its own. */
EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	void *context = context_to_end(device);
	int code = forward_cuDevicePrimaryCtxRelease_v2(device), active = 1;
	unsigned flags = 0;
	if (code == SUCCESS && forward_cuDevicePrimaryCtxGetState(device, &flags, &active) == SUCCESS && !active)
		forget(device, context);
	return code;
}
