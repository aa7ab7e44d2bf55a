/* arenas knows where pausable memory may lie. It keeps the address ranges of the engine, for arena_contains: two
 * comparisons for each, without a lock. Memory that the program maps itself may lie anywhere. */
#include "shim.h"

HIDDEN struct arena_range arena_ranges[ARENAS_MAX];
HIDDEN _Atomic int arena_count;
HIDDEN _Atomic bool handles_tracked;

/* The engine calls this, one call at a time, before it hands out any address of the range. */
HIDDEN int arena_add(uintptr_t base, size_t size)
{
	int count = atomic_load_explicit(&arena_count, memory_order_relaxed);
	if (count == ARENAS_MAX)
		return ERROR_MEMORY_ALLOCATION;
	arena_ranges[count] = (struct arena_range){base, size};
	atomic_store_explicit(&arena_count, count + 1, memory_order_release);
	return SUCCESS;
}

HIDDEN void handles_track(void)
{
	atomic_store(&handles_tracked, true);
}
