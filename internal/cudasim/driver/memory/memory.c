// The layer's state: its start and its end.
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"

struct memory memory;

void memory_start(void)
{
	for (int i = 0; i < MAX_DEVICES; i++)
		memory.devices[i] = (struct device){.total = sim.settings.memory, .fd = -1};
}

static void release_ranges(struct tree *ranges)
{
	while (ranges->root) {
		struct reservation *range = (struct reservation *)ranges->root;
		munmap((void *)range->node.key, range->size);
		tree_remove(ranges, &range->node);
		free(range);
	}
}

void memory_drop_mappings(void)
{
	while (memory.mappings.root) {
		struct mapping *mapping = (struct mapping *)memory.mappings.root;
		addresses_clear(mapping->node.key, mapping->size);
		mapping_delete(mapping);
	}
	host_forget_context(0);
}

void memory_drop(void)
{
	release_ranges(&memory.reservations);
	release_ranges(&memory.heaps);
	for (int i = 0; i < MAX_DEVICES; i++) {
		memory_forget_addresses(&memory.devices[i]);
		if (memory.devices[i].fd >= 0)
			close(memory.devices[i].fd);
	}
	budget_leave();
}
