// Virtual memory management: it refuses what the real driver (580) does, with its codes. memory/mapping.c maps.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process.h"
#include "entry/gate.h"

static bool aligned(uint64_t value)
{
	return value % sim.settings.granularity == 0;
}

static CUresult reserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
			 unsigned long long flags)
{
	if (!address || !size || !aligned(size) || (alignment & (alignment - 1)) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t at, coarsest = alignment > sim.settings.granularity ? alignment : sim.settings.granularity;
	if (!addresses_reserve(&memory.reservations, hint, size, coarsest, &at))
		return CUDA_ERROR_OUT_OF_MEMORY;
	tally(RESERVATIONS, 1, size);
	*address = at;
	return CUDA_SUCCESS;
}

static CUresult free_addresses(CUdeviceptr address, size_t size)
{
	struct reservation *reservation = (struct reservation *)tree_find(&memory.reservations, address);
	if (!reservation || reservation->size != size)
		return CUDA_ERROR_INVALID_VALUE;
	struct tree_node *mapping = tree_ceiling(&memory.mappings, address);
	if (mapping && mapping->key < address + size)
		return CUDA_ERROR_INVALID_VALUE;
	if (munmap((void *)address, size))
		return CUDA_ERROR_OPERATING_SYSTEM;
	tree_remove(&memory.reservations, &reservation->node);
	tally(RESERVATIONS, -1, size);
	free(reservation);
	return CUDA_SUCCESS;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	bool host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
	if (!host && prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (host ? prop->location.id : !device_valid(prop->location.id)) // there is one node
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

static struct allocation *allocation_find(CUmemGenericAllocationHandle handle)
{
	return object_find((void *)handle, ALLOCATION);
}

// Makes a handle for the block, and takes over the caller's reference to it, even if it fails.
static CUresult allocation_new(struct block *block, CUmemGenericAllocationHandle *handle)
{
	struct allocation *allocation = object_new(ALLOCATION, sizeof *allocation);
	if (!allocation) {
		block_release(block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation->block = block;
	allocation->references = 1;
	block->handle = allocation;
	tally(HANDLES, 1, block->size);
	*handle = (CUmemGenericAllocationHandle)object_handle(allocation);
	return CUDA_SUCCESS;
}

// Memory of the host is no device's, and outlives its maker.
static CUresult host_block(uint64_t size, struct block **block)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	int fd = memfd_create("cudasim-host", MFD_CLOEXEC);
	if (fd >= 0 && !ftruncate(fd, (off_t)size))
		result = block_adopt(fd, 0, size, block);
	if (fd >= 0)
		close(fd);
	if (result == CUDA_SUCCESS)
		(*block)->host = true;
	return result;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
			 unsigned long long flags)
{
	if (!handle || !size || !aligned(size) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(check_prop(prop));
	struct block *block;
	TRY(prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? block_new(prop->location.id, size, &block)
							       : host_block(size, &block));
	block->prop = *prop;
	return allocation_new(block, handle);
}

// A group has at most one member, which gets what is written to the group. The group cannot be mapped here.
static CUresult create_group(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	if (!handle || !prop || !prop->numDevices || !prop->size || !aligned(prop->size) || prop->flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct block *block = calloc(1, sizeof *block);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*block = (struct block){.references = 1, .foreign_fd = -1, .multicast = prop->size}; // without memory
	TRY(allocation_new(block, handle));
	process_shares(1);
	return CUDA_SUCCESS;
}

static struct block *block_of(CUmemGenericAllocationHandle handle)
{
	struct allocation *allocation = allocation_find(handle);
	return allocation ? allocation->block : NULL;
}

static struct block *multicast_find(CUmemGenericAllocationHandle handle)
{
	struct block *block = block_of(handle);
	return block && block->multicast ? block : NULL;
}

// Returns the block that a mapping by cuMemMap shows at this address.
static struct block *block_at(CUdeviceptr address)
{
	struct mapping *mapping = mapping_at(address);
	return mapping && !mapping->context ? mapping->block : NULL;
}

static CUresult bind(CUmemGenericAllocationHandle handle, size_t offset, struct block *member, size_t member_offset,
		     size_t size, unsigned long long flags)
{
	struct block *group = multicast_find(handle);
	if (!group || !member || member->multicast || group->member || flags || !size || offset > group->multicast ||
	    size > group->multicast - offset || member_offset > member->size || size > member->size - member_offset)
		return CUDA_ERROR_INVALID_VALUE;
	group->member = member;
	group->member->references++;
	return CUDA_SUCCESS;
}

static CUresult unbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size)
{
	struct block *group = multicast_find(handle);
	if (!group || !group->member || !device_valid(device) || offset > group->multicast ||
	    size > group->multicast - offset)
		return CUDA_ERROR_INVALID_VALUE;
	block_release(group->member);
	group->member = NULL;
	return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	struct allocation *allocation = allocation_find(handle);
	if (!allocation)
		return CUDA_ERROR_INVALID_VALUE;
	if (--allocation->references)
		return CUDA_SUCCESS;
	struct block *block = allocation->block;
	tally(HANDLES, -1, block->size);
	block->handle = NULL;
	object_delete(&allocation->object);
	block_release(block); // mappings keep it
	return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			 unsigned long long flags)
{
	if (offset)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct block *block = block_of(handle);
	uint64_t end;
	if (!block || !size || !aligned(address) || !aligned(size) || flags || size > block->size ||
	    __builtin_add_overflow(address, size, &end))
		return CUDA_ERROR_INVALID_VALUE;
	struct reservation *range = (struct reservation *)tree_floor(&memory.reservations, address);
	if (!range || end > range->node.key + range->size)
		return CUDA_ERROR_INVALID_VALUE;
	struct mapping *before = (struct mapping *)tree_floor(&memory.mappings, end - 1);
	if (before && before->node.key + before->size > address)
		return CUDA_ERROR_INVALID_VALUE;
	struct mapping *mapping;
	TRY(mapping_new(address, size, PROT_NONE, block, &mapping));
	tally(MAPPINGS, 1, size);
	return CUDA_SUCCESS;
}

// Reports whether mappings together make up exactly this range.
static bool whole_mappings(uint64_t address, uint64_t size)
{
	uint64_t end = address;
	EACH_MAPPING(mapping, address, address + size) {
		if (mapping->context)
			return false;
		end += mapping->size;
	}
	return size && end == address + size;
}

static CUresult unmap(CUdeviceptr address, size_t size)
{
	if (!whole_mappings(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!addresses_clear(address, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	queue_poison(address, size); // does not wait: work in flight will fault
	for (uint64_t at = address; at < address + size;) {
		struct mapping *mapping = mapping_from(at);
		at += mapping->size;
		tally(MAPPINGS, -1, mapping->size);
		mapping_delete(mapping);
	}
	return CUDA_SUCCESS;
}

// Gives every mapping of the range the protection that its access asks for, with one call for equal neighbours.
static bool protect(uint64_t address, uint64_t end)
{
	uint64_t start = address;
	EACH_MAPPING(mapping, address, end) {
		int protection = access_to_protection(mapping->access);
		uint64_t at = mapping->node.key + mapping->size;
		struct mapping *next = at < end ? mapping_from(at) : NULL;
		if (next && access_to_protection(next->access) == protection)
			continue;
		if (mprotect((void *)start, at - start, protection))
			return false;
		start = at;
	}
	return true;
}

static bool owned_or_peer(uint64_t address, uint64_t end, CUdevice device)
{
	EACH_MAPPING(mapping, address, end)
		if (!mapping->block->host && mapping->block->device != device && !peers(device, mapping->block->device))
			return false;
	return true;
}

static CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
	if (!access || !count || !whole_mappings(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t end = address + size;
	uint32_t mask = 0, bits = 0;
	for (size_t i = 0; i < count; i++) {
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return CUDA_ERROR_NOT_SUPPORTED;
		if (!device_valid(access[i].location.id) || !owned_or_peer(address, end, access[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		unsigned flags = access[i].flags, shift = 2 * (unsigned)access[i].location.id;
		if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
		    flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_VALUE;
		mask |= 3u << shift;
		bits = (bits & ~(3u << shift)) | flags << shift;
	}
	EACH_MAPPING(mapping, address, end) {
		mapping->previous_access = mapping->access;
		mapping->access = (mapping->access & ~mask) | bits;
	}
	if (protect(address, end))
		return CUDA_SUCCESS;
	EACH_MAPPING(mapping, address, end)
		mapping->access = mapping->previous_access;
	protect(address, end);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
	struct mapping *mapping = mapping_at(address);
	if (!flags || !location || !mapping || mapping->context)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = mapping->access >> (2 * location->id) & 3;
	return CUDA_SUCCESS;
}

static CUresult granularity_of(size_t *granularity, const CUmemAllocationProp *prop,
			 CUmemAllocationGranularity_flags option)
{
	if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(check_prop(prop));
	*granularity = sim.settings.granularity;
	return CUDA_SUCCESS;
}

static CUresult retain(struct block *block, CUmemGenericAllocationHandle *handle)
{
	if (block->handle) {
		block->handle->references++;
		*handle = (CUmemGenericAllocationHandle)object_handle(block->handle);
		return CUDA_SUCCESS;
	}
	block->references++;
	return allocation_new(block, handle);
}

// The start of an exported descriptor, which tells an importer where the block is; its id is the handle. Memory that
// outlives its maker ends with it instead: process is 0 there.
struct export {
	char magic[8];
	struct exported block;
};
#define MAGIC "cudasim"
#define HOST -1 // instead of a device

static CUresult export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
			 unsigned long long flags)
{
	struct block *block = block_of(handle);
	if (!shareable || !block || flags || block->imported)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!(block->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_ERROR_INVALID_VALUE;
	struct export export = {MAGIC, block_export(block, handle)};
	int fd = block_outlive(block);
	off_t at = fd < 0 ? 0 : (off_t)block->size;
	if (fd >= 0)
		export.block = (struct exported){.fd = -1, .device = block->host ? HOST : block->device, .size = block->size};
	else if (block->outlives || (fd = memfd_create("cudasim-export", MFD_CLOEXEC)) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (pwrite(fd, &export, sizeof export, at) != sizeof export) {
		close(fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*(int *)shareable = fd;
	block_shared(block);
	return CUDA_SUCCESS;
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)
{
	struct export export;
	int fd = (int)(intptr_t)shareable;
	struct stat status;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!handle || fstat(fd, &status) || status.st_size < (off_t)sizeof export ||
	    pread(fd, &export, sizeof export, status.st_size - (off_t)sizeof export) != sizeof export ||
	    memcmp(export.magic, MAGIC, sizeof MAGIC))
		return CUDA_ERROR_INVALID_VALUE;
	bool host = export.block.device == HOST;
	if (!host && !device_valid(export.block.device))
		return CUDA_ERROR_INVALID_VALUE;
	struct block *block = block_of(export.block.id);
	if (export.block.process == getpid())
		return block ? retain(block, handle) : CUDA_ERROR_INVALID_VALUE;
	if (!export.block.process)
		TRY(block_view(fd, host ? 0 : export.block.device, export.block.size, &block));
	else
		TRY(block_import(&export.block, &block));
	block->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    .location = {CU_MEM_LOCATION_TYPE_DEVICE, block->device}};
	block->host = host;
	if (host)
		block->prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	block->imported = true;
	TRY(allocation_new(block, handle));
	block_shared(block);
	return CUDA_SUCCESS;
}

VMM_FUNCTIONS(DEFINE)
MULTICAST_FUNCTIONS(DEFINE)
