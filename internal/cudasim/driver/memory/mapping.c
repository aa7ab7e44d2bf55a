// Shared mappings of blocks, and which devices may touch them. The caller has checked that ranges fit and are free.
#include <stdlib.h>
#include <sys/mman.h>

#include "memory/memory.h"

// Old size 0 makes a second mapping of the same memory.
static bool show(uint64_t address, uint64_t size, int protection, const struct block *block)
{
	void *at = (void *)address;
	if (block->view)
		return mremap(block->view, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED &&
		       !mprotect(at, size, protection);
	int fd = block->foreign_fd >= 0 ? block->foreign_fd : memory.devices[block->device].fd;
	return mmap(at, size, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)block->offset) != MAP_FAILED;
}

CUresult mapping_new(uint64_t address, uint64_t size, int protection, struct block *block, struct mapping **result)
{
	struct mapping *mapping = calloc(1, sizeof *mapping);
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!show(address, size, protection, block)) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mapping->size = mapping->requested = size;
	mapping->block = block;
	mapping->id = ++sim.next_id;
	block->references++;
	block->shown = true;
	tree_insert(&memory.mappings, &mapping->node, address);
	*result = mapping;
	return CUDA_SUCCESS;
}

void mapping_delete(struct mapping *mapping)
{
	tree_remove(&memory.mappings, &mapping->node);
	block_release(mapping->block);
	free(mapping);
}

struct mapping *mapping_at(uint64_t address)
{
	struct mapping *mapping = (struct mapping *)tree_floor(&memory.mappings, address);
	return mapping && address - mapping->node.key < mapping->size ? mapping : NULL;
}

struct mapping *mapping_from(uint64_t address)
{
	return (struct mapping *)tree_find(&memory.mappings, address);
}

int access_to_protection(uint32_t access)
{
	int protection = PROT_NONE;
	for (; access; access >>= 2)
		protection |= access & 3; // CU_MEM_ACCESS_FLAGS are PROT_READ and PROT_WRITE
	return protection;
}

static bool in_ranges(const struct tree *ranges, uint64_t address, uint64_t size)
{
	struct reservation *range = (struct reservation *)tree_floor(ranges, address + size - 1);
	return range && range->node.key + range->size > address;
}

struct reach copy_reach(int device)
{
	return (struct reach){device, UINT32_MAX};
}

static bool accessible(const struct mapping *mapping, struct reach reach, bool write)
{
	if (mapping->context)
		return reach.devices >> mapping->block->device & 1;
	uint32_t needed = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
	return (mapping->access >> (2 * reach.device) & needed) == needed;
}

enum place memory_place(struct reach reach, uint64_t address, uint64_t size, bool write)
{
	if (size == 0)
		return PLACE_HOST;
	uint64_t at = address, end = address + size;
	if (end < address)
		return PLACE_FORBIDDEN;
	while (at < end) {
		struct mapping *mapping = mapping_at(at);
		if (!mapping)
			break;
		if (!accessible(mapping, reach, write))
			return PLACE_FORBIDDEN;
		at = mapping->node.key + mapping->size;
	}
	if (at >= end)
		return PLACE_DEVICE;
	if (at > address)
		return PLACE_FORBIDDEN;
	bool reserved = in_ranges(&memory.reservations, address, size) || in_ranges(&memory.heaps, address, size);
	return reserved ? PLACE_UNMAPPED : PLACE_HOST;
}

// Makes all pages at once for a write: several times faster than fault by fault.
void memory_populate(uint64_t address, uint64_t size)
{
#ifdef MADV_POPULATE_WRITE
	uint64_t start = (address + PAGE - 1) & ~(uint64_t)(PAGE - 1),
		 end = (address + size) & ~(uint64_t)(PAGE - 1);
	if (end > start && end - start >= 64 * PAGE)
		madvise((void *)start, end - start, MADV_POPULATE_WRITE);
#endif
}
