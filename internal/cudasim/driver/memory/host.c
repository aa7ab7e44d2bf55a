// The ranges of pinned host memory: allocated here, or the program's own and registered. They are noted, not locked.
#include <stdlib.h>
#include <sys/mman.h>

#include "memory/memory.h"

struct host_range *host_range_at(uint64_t address)
{
	struct host_range *range = (struct host_range *)tree_floor(&memory.host, address);
	return range && address - range->node.key < range->size ? range : NULL;
}

bool host_pinned(uint64_t address, uint64_t size)
{
	for (uint64_t at = address; at < address + size;) {
		struct host_range *range = host_range_at(at);
		if (!range)
			return false;
		at = range->node.key + range->size;
	}
	return true;
}

struct host_range *host_range_new(uint64_t address, uint64_t size, unsigned flags, uint64_t context,
				  bool registered)
{
	struct host_range *range = calloc(1, sizeof *range);
	if (!range)
		return NULL;
	range->size = size;
	range->flags = flags;
	range->registered = registered;
	range->context = context;
	tree_insert(&memory.host, &range->node, address);
	tally(registered ? REGISTRATIONS : HOST_ALLOCATIONS, 1, size);
	return range;
}

void host_range_delete(struct host_range *range)
{
	tree_remove(&memory.host, &range->node);
	tally(range->registered ? REGISTRATIONS : HOST_ALLOCATIONS, -1, range->size);
	if (!range->registered)
		munmap((void *)range->node.key, range->size);
	free(range);
}

void host_forget_context(uint64_t context)
{
	struct host_range *range;
	for (uint64_t next = 0; (range = (struct host_range *)tree_ceiling(&memory.host, next));) {
		next = range->node.key + range->size;
		if (!context || range->context == context)
			host_range_delete(range);
	}
}
