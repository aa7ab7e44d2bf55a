/* context knows the contexts that the program makes itself, so that a pause can wait for what they run. It leaves
 * the primary contexts to CUDA, and contexts made by functions that were found with dlsym to nobody: memory is
 * refused in those. */
#define _GNU_SOURCE
#include "seam.h"
#include "forward.h"

#include <sched.h>

/* A table without a lock, which a fork could leave held. A context is used only while it is entered here, and is
 * destroyed only when nobody uses it. */
enum { CONTEXTS_MAX = 1024, CHANGING = 1 };
static struct entry {
	_Atomic uintptr_t context; /* 0: free; CHANGING */
	_Atomic int users;
	int device;
} entries[CONTEXTS_MAX];
HIDDEN int context_slots; /* entries that were ever used */

static int enter(int code, void **made, int device)
{
	if (code != SUCCESS || !made)
		return code;
	for (int i = 0; i < CONTEXTS_MAX; i++) {
		uintptr_t none = 0;
		if (!atomic_compare_exchange_strong(&entries[i].context, &none, CHANGING))
			continue;
		entries[i].device = device;
		atomic_store(&entries[i].context, (uintptr_t)*made);
		int slots = __atomic_load_n(&context_slots, __ATOMIC_RELAXED);
		while (slots <= i && !__atomic_compare_exchange_n(&context_slots, &slots, i + 1, false, __ATOMIC_SEQ_CST,
								  __ATOMIC_SEQ_CST))
			;
		break;
	}
	return code; /* memory is refused in one that found no entry */
}

HIDDEN uintptr_t context_acquire(int slot, int device)
{
	struct entry *e = &entries[slot];
	atomic_fetch_add(&e->users, 1);
	uintptr_t context = atomic_load(&e->context);
	if (context > CHANGING && e->device == device)
		return context;
	atomic_fetch_sub(&e->users, 1);
	return 0;
}

HIDDEN void context_release(int slot)
{
	atomic_fetch_sub(&entries[slot].users, 1);
}

EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
	return enter(forward_cuCtxCreate_v2(context, flags, device), context, device);
}

EXPORT int cuCtxCreate_v3(void **context, void *affinities, int count, unsigned flags, int device)
{
	return enter(forward_cuCtxCreate_v3(context, affinities, count, flags, device), context, device);
}

EXPORT int cuCtxCreate_v4(void **context, void *parameters, unsigned flags, int device)
{
	return enter(forward_cuCtxCreate_v4(context, parameters, flags, device), context, device);
}

EXPORT int cuCtxDestroy_v2(void *context)
{
	struct entry *found = NULL;
	int slots = __atomic_load_n(&context_slots, __ATOMIC_SEQ_CST);
	for (int i = 0; i < slots && !found; i++) {
		uintptr_t mine = (uintptr_t)context;
		if (mine > CHANGING && atomic_compare_exchange_strong(&entries[i].context, &mine, CHANGING))
			found = &entries[i];
	}
	while (found && atomic_load(&found->users) > 0)
		sched_yield();
	int code = forward_cuCtxDestroy_v2(context);
	if (code == SUCCESS)
		captures_forget(context);
	if (found)
		atomic_store(&found->context, code == SUCCESS ? 0 : (uintptr_t)context);
	return code;
}
