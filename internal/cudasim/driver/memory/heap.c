// Memory with addresses of its own, for cuMemAlloc and cuMemAllocAsync. The entry points decide when it may be freed.
#include <stdlib.h>
#include <sys/mman.h>

#include "memory/memory.h"

#define HEAP_SIZE (256ull << 30)

// Addresses of a freed allocation, which the next of its size gets.
struct free_range {
	struct tree_node node; // if it is the last that was freed of its size
	struct free_range *next; // the one before
	uint64_t address;
};

static bool addresses_take(struct device *device, uint64_t size, uint64_t *address)
{
	struct free_range *last = (struct free_range *)tree_find(&device->free_addresses, size);
	if (last) {
		tree_remove(&device->free_addresses, &last->node);
		if (last->next)
			tree_insert(&device->free_addresses, &last->next->node, size);
		*address = last->address;
		free(last);
		return true;
	}
	if (device->heap_end - device->heap < size) {
		uint64_t heap_size = size > HEAP_SIZE ? size : HEAP_SIZE, coarsest = sim.settings.granularity;
		if (!addresses_reserve(&memory.heaps, 0, heap_size, coarsest, &device->heap)) {
			heap_size = size; // address space is limited, so take just enough
			if (!addresses_reserve(&memory.heaps, 0, heap_size, coarsest, &device->heap))
				return false;
		}
		device->heap_end = device->heap + heap_size;
	}
	*address = device->heap;
	device->heap += size;
	return true;
}

static void addresses_give(struct device *device, uint64_t size, uint64_t address)
{
	struct free_range *range = calloc(1, sizeof *range);
	if (!range)
		return; // only the addresses are lost
	range->address = address;
	range->next = (struct free_range *)tree_find(&device->free_addresses, size);
	if (range->next)
		tree_remove(&device->free_addresses, &range->next->node);
	tree_insert(&device->free_addresses, &range->node, size);
}

void memory_forget_addresses(struct device *device)
{
	uint64_t address;
	while (device->free_addresses.root)
		addresses_take(device, device->free_addresses.root->key, &address);
}

CUresult memory_show(struct block *block, uint64_t context, uint64_t size, struct pool *pool, uint64_t *address)
{
	int index = block->device;
	struct device *device = &memory.devices[index];
	uint64_t rounded = block->size, at;
	struct mapping *mapping;
	if (!addresses_take(device, rounded, &at)) {
		block_release(block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = mapping_new(at, rounded, PROT_READ | PROT_WRITE, block, &mapping);
	block_release(block); // the mapping holds it now
	if (result != CUDA_SUCCESS) {
		addresses_give(device, rounded, at);
		return result;
	}
	mapping->requested = size;
	mapping->context = context;
	mapping->access = (uint32_t)CU_MEM_ACCESS_FLAGS_PROT_READWRITE << (2 * index);
	mapping->pool = pool;
	if (pool && (pool->used += rounded) > pool->high)
		pool->high = pool->used;
	tally(ALLOCATIONS, 1, rounded);
	*address = at;
	return CUDA_SUCCESS;
}

CUresult memory_allocate(int index, uint64_t context, uint64_t size, struct pool *pool, uint64_t *address)
{
	uint64_t rounded = (size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	if (rounded < size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct block *block;
	TRY(block_new(index, rounded, &block));
	return memory_show(block, context, size, pool, address);
}

static CUresult release(struct mapping *mapping)
{
	uint64_t address = mapping->node.key, size = mapping->size;
	struct device *device = &memory.devices[mapping->block->device];
	if (!addresses_clear(address, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (mapping->pool && !(mapping->pool->used -= size) && mapping->pool->ended)
		object_delete(&mapping->pool->object);
	tally(ALLOCATIONS, -1, size);
	mapping_delete(mapping);
	addresses_give(device, size, address);
	return CUDA_SUCCESS;
}

CUresult memory_free(uint64_t address)
{
	struct mapping *mapping = mapping_from(address);
	return mapping && mapping->context ? release(mapping) : CUDA_ERROR_INVALID_VALUE;
}

void memory_forget_context(uint64_t context)
{
	struct mapping *mapping;
	for (uint64_t next = 0; (mapping = (struct mapping *)tree_ceiling(&memory.mappings, next));) {
		next = mapping->node.key + mapping->size;
		if (mapping->context == context)
			release(mapping);
	}
}
