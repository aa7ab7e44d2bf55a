// Where simulated memory lives: one sparse memfd per device, shown by shared mappings.
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sim.h"

#define FILE_SIZE (1ll << 60) // sparse: only touched pages exist

// A process may have only so many VMAs (vm.max_map_count), and at that limit the kernel
// refuses even what would leave fewer. A few kept for nothing else are given up for it.
static char *ballast;
enum { PAGE = 4096, BALLAST = 8 };

static void ballast_take(void)
{
	char *pages = mmap(NULL, BALLAST * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			   0);
	if (pages == MAP_FAILED)
		return;
	for (int i = 0; i < BALLAST; i += 2)
		mprotect(pages + i * PAGE, PAGE, PROT_READ);
	ballast = pages;
}

static void ballast_drop(void)
{
	munmap(ballast, BALLAST * PAGE);
	ballast = NULL;
}

static bool device_open(struct device *device)
{
	if (device->fd >= 0)
		return true;
	int fd = memfd_create("cudasim", MFD_CLOEXEC);
	if (fd < 0)
		return false;
	if (ftruncate(fd, FILE_SIZE)) {
		close(fd);
		return false;
	}
	device->fd = fd;
	if (!ballast)
		ballast_take();
	return true;
}

struct block *block_new(int index, uint64_t size, CUresult *result)
{
	struct device *device = &sim.devices[index];
	struct block *block = NULL;
	*result = CUDA_ERROR_OUT_OF_MEMORY;
	if (size > device->total - device->used || size > (uint64_t)FILE_SIZE - device->next_offset)
		return NULL;
	if (!device_open(device)) {
		*result = CUDA_ERROR_OPERATING_SYSTEM;
		return NULL;
	}
	block = calloc(1, sizeof *block);
	if (!block)
		return NULL;
	block->device = index;
	block->offset = device->next_offset;
	block->size = size;
	block->references = 1;
	block->foreign_fd = -1;
	device->next_offset += size;
	device->used += size;
	*result = CUDA_SUCCESS;
	return block;
}

void block_release(struct block *block)
{
	if (--block->references)
		return;
	struct device *device = &sim.devices[block->device];
	if (block->foreign_fd >= 0) {
		close(block->foreign_fd); // the exporting process accounts for it
	} else {
		fallocate(device->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block->offset,
			  (off_t)block->size);
		device->used -= block->size;
	}
	free(block);
}

static bool clear(uint64_t address, uint64_t size)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	return mmap((void *)address, size, PROT_NONE, flags, -1, 0) != MAP_FAILED;
}

bool addresses_clear(uint64_t address, uint64_t size)
{
	if (clear(address, size))
		return true;
	if (!ballast)
		return false;
	ballast_drop();
	bool cleared = clear(address, size);
	ballast_take();
	return cleared;
}

bool addresses_reserve(uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *address)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	if (hint && hint % alignment == 0) {
		void *at = mmap((void *)hint, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
		if (at == (void *)hint) {
			*address = hint;
			return true;
		}
		if (at != MAP_FAILED) // a kernel that does not know the flag
			munmap(at, size);
	}
	uint64_t padded;
	if (__builtin_add_overflow(size, alignment, &padded))
		return false;
	void *at = mmap(NULL, padded, PROT_NONE, flags, -1, 0);
	if (at == MAP_FAILED)
		return false;
	uint64_t start = (uint64_t)at, aligned = (start + alignment - 1) & ~(alignment - 1);
	if (aligned > start)
		munmap((void *)start, aligned - start);
	if (start + padded > aligned + size)
		munmap((void *)(aligned + size), start + padded - aligned - size);
	*address = aligned;
	return true;
}

CUresult mapping_new(uint64_t address, uint64_t size, struct block *block, struct mapping **result)
{
	struct mapping *mapping = calloc(1, sizeof *mapping);
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = block->foreign_fd >= 0 ? block->foreign_fd : sim.devices[block->device].fd;
	if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
		 (off_t)block->offset) == MAP_FAILED) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mapping->size = mapping->requested = size;
	mapping->block = block;
	mapping->id = ++sim.next_id;
	block->references++;
	tree_insert(&sim.mappings, &mapping->node, address);
	*result = mapping;
	return CUDA_SUCCESS;
}

void mapping_delete(struct mapping *mapping)
{
	tree_remove(&sim.mappings, &mapping->node);
	block_release(mapping->block);
	free(mapping);
}

struct mapping *mapping_at(uint64_t address)
{
	struct mapping *mapping = (struct mapping *)tree_floor(&sim.mappings, address);
	return mapping && address - mapping->node.key < mapping->size ? mapping : NULL;
}

int access_to_protection(uint32_t access)
{
	int protection = PROT_NONE;
	for (; access; access >>= 2) {
		if ((access & 3) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return PROT_READ | PROT_WRITE;
		if (access & 3)
			protection = PROT_READ;
	}
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

struct reach kernel_reach(const struct context *context)
{
	return (struct reach){context->device, context->peers | 1u << context->device};
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
	if (at > address || in_ranges(&sim.reservations, address, size) ||
	    in_ranges(&sim.heaps, address, size))
		return PLACE_FORBIDDEN;
	return PLACE_HOST;
}

// Pages that are about to be written all at once: several times faster than fault by fault.
void memory_populate(uint64_t address, uint64_t size)
{
#ifdef MADV_POPULATE_WRITE
	uint64_t start = (address + PAGE - 1) & ~(uint64_t)(PAGE - 1),
		 end = (address + size) & ~(uint64_t)(PAGE - 1);
	if (end > start && end - start >= 64 * PAGE)
		madvise((void *)start, end - start, MADV_POPULATE_WRITE);
#endif
}
