// cuMemAlloc and what can be asked about an address.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sim.h"

enum { PAGE = 4096, PITCH = 512 };
#define HEAP_SIZE (256ull << 30)

// Addresses of freed allocations of one size: the next of that size gets one of them.
struct free_range {
	struct tree_node node; // of the first of its size
	struct free_range *next;
	uint64_t address;
};

static bool addresses_take(struct device *device, uint64_t size, uint64_t *address)
{
	struct free_range *first = (struct free_range *)tree_find(&device->free_addresses, size);
	if (first) {
		struct free_range *taken = first->next;
		if (taken) {
			first->next = taken->next;
		} else {
			taken = first;
			tree_remove(&device->free_addresses, &first->node);
		}
		*address = taken->address;
		free(taken);
		return true;
	}
	if (device->heap_end - device->heap < size) {
		struct reservation *heap = calloc(1, sizeof *heap);
		uint64_t at, heap_size = size > HEAP_SIZE ? size : HEAP_SIZE;
		if (!heap)
			return false;
		if (!addresses_reserve(0, heap_size, sim.granularity, &at)) {
			heap_size = size; // address space is limited: take just enough
			if (!addresses_reserve(0, heap_size, sim.granularity, &at)) {
				free(heap);
				return false;
			}
		}
		heap->size = heap_size;
		tree_insert(&sim.heaps, &heap->node, at);
		device->heap = at;
		device->heap_end = at + heap_size;
	}
	*address = device->heap;
	device->heap += size;
	return true;
}

static void addresses_give(struct device *device, uint64_t size, uint64_t address)
{
	struct free_range *range = calloc(1, sizeof *range);
	if (!range)
		return; // the addresses are lost, nothing else
	range->address = address;
	struct free_range *first = (struct free_range *)tree_find(&device->free_addresses, size);
	if (first) {
		range->next = first->next;
		first->next = range;
	} else {
		tree_insert(&device->free_addresses, &range->node, size);
	}
}

void memory_forget_addresses(struct device *device)
{
	while (device->free_addresses.root) {
		struct free_range *first = (struct free_range *)device->free_addresses.root;
		tree_remove(&device->free_addresses, &first->node);
		while (first) {
			struct free_range *next = first->next;
			free(first);
			first = next;
		}
	}
}

CUresult memory_allocate(struct context *context, uint64_t size, struct pool *pool, uint64_t *address)
{
	struct device *device = &sim.devices[context->device];
	uint64_t rounded = (size + PAGE - 1) & ~(uint64_t)(PAGE - 1), at;
	if (rounded < size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result;
	struct block *block = block_new(context->device, rounded, &result);
	if (!block)
		return result;
	struct mapping *mapping = NULL;
	if (!addresses_take(device, rounded, &at)) {
		block_release(block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = mapping_new(at, rounded, block, &mapping);
	block_release(block); // the mapping holds it now
	if (result == CUDA_SUCCESS && mprotect((void *)at, rounded, PROT_READ | PROT_WRITE)) {
		addresses_clear(at, rounded);
		mapping_delete(mapping);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result != CUDA_SUCCESS) {
		addresses_give(device, rounded, at);
		return result;
	}
	mapping->requested = size;
	mapping->context = context->object.node.key;
	mapping->access = (uint32_t)CU_MEM_ACCESS_FLAGS_PROT_READWRITE << (2 * context->device);
	mapping->pool = pool;
	if (pool && (pool->used += rounded) > pool->high)
		pool->high = pool->used;
	sim.statistics.allocations++;
	sim.statistics.allocation_bytes += rounded;
	*address = at;
	return CUDA_SUCCESS;
}

static CUresult release(struct mapping *mapping)
{
	uint64_t address = mapping->node.key, size = mapping->size;
	struct device *device = &sim.devices[mapping->block->device];
	if (!addresses_clear(address, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (mapping->pool)
		mapping->pool->used -= size;
	sim.statistics.allocations--;
	sim.statistics.allocation_bytes -= size;
	mapping_delete(mapping);
	addresses_give(device, size, address);
	return CUDA_SUCCESS;
}

CUresult memory_free(uint64_t address)
{
	struct mapping *mapping = (struct mapping *)tree_find(&sim.mappings, address);
	return mapping && mapping->context ? release(mapping) : CUDA_ERROR_INVALID_VALUE;
}

void memory_forget_context(uint64_t context)
{
	struct mapping *mapping = (struct mapping *)tree_ceiling(&sim.mappings, 0);
	while (mapping) {
		uint64_t next = mapping->node.key + mapping->size;
		if (mapping->context == context)
			release(mapping);
		mapping = (struct mapping *)tree_ceiling(&sim.mappings, next);
	}
}

static CUresult allocate(CUdeviceptr *address, size_t size)
{
	TRY(capture_forbids_unsafe());
	uint64_t at;
	TRY(memory_allocate(current_context(), size, NULL, &at));
	*address = at;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	ENTER(cuMemAlloc_v2);
	if (!address || !size)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(address, size);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			    unsigned element)
{
	ENTER(cuMemAllocPitch_v2);
	size_t padded = (width + PITCH - 1) & ~(size_t)(PITCH - 1), size;
	if (!address || !pitch || !width || !height || (element != 4 && element != 8 && element != 16) ||
	    padded < width || __builtin_mul_overflow(padded, height, &size))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(allocate(address, size));
	*pitch = padded;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
	ENTER(cuMemAllocManaged);
	(void)address;
	(void)size;
	(void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	ENTER(cuMemFree_v2);
	if (!address)
		return CUDA_SUCCESS;
	struct mapping *mapping = (struct mapping *)tree_find(&sim.mappings, address);
	if (!mapping || !mapping->context)
		return CUDA_ERROR_INVALID_VALUE;
	struct context *owner = object_find((void *)mapping->context, CONTEXT);
	TRY(capture_forbids_context(owner));
	queue_wait_device(mapping->block->device);
	if (current_context()->sticky)
		return current_context()->sticky;
	return memory_free(address); // looked up again: the wait ran operations
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	ENTER(cuMemGetInfo_v2);
	struct device *device = &sim.devices[current_context()->device];
	if (available)
		*available = device->total - device->used;
	if (total)
		*total = device->total;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	ENTER(cuMemGetAddressRange_v2);
	struct mapping *mapping = mapping_at(address);
	struct host_range *host = host_range_at(address);
	if (!mapping && !host)
		return CUDA_ERROR_INVALID_VALUE;
	if (base)
		*base = mapping ? mapping->node.key : host->node.key;
	if (size)
		*size = mapping ? mapping->requested : host->size;
	return CUDA_SUCCESS;
}

// The size of what an attribute writes, 0 if it is not simulated.
static size_t attribute_size(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return 8;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return 4;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return 1;
	}
	return 0;
}

static bool reserved(uint64_t address)
{
	struct reservation *range = (struct reservation *)tree_floor(&sim.reservations, address);
	return range && address - range->node.key < range->size;
}

// The attribute's value; false where the pointer has none.
static bool attribute_of(uint64_t address, CUpointer_attribute attribute, uint64_t *value)
{
	struct mapping *mapping = mapping_at(address);
	struct host_range *host = mapping ? NULL : host_range_at(address);
	*value = 0;
	if (!mapping && !host)
		return attribute == CU_POINTER_ATTRIBUTE_MAPPED && reserved(address);
	bool vmm = mapping && !mapping->context;
	uint64_t context = mapping ? mapping->context : host->context;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*value = context; // memory from handles belongs to none
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*value = mapping ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *value = address; break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER: *value = address; return host != NULL;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
		struct context *owner = object_find((void *)context, CONTEXT);
		*value = (uint64_t)(mapping ? mapping->block->device : owner ? owner->device : 0);
		break;
	}
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *value = mapping && !vmm; break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *value = mapping ? mapping->id : host->node.key; break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*value = mapping ? mapping->node.key : host->node.key;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *value = mapping ? mapping->requested : host->size; break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *value = mapping ? mapping->size : host->size; break;
	case CU_POINTER_ATTRIBUTE_MAPPED: *value = 1; break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*value = vmm ? (uint64_t)mapping->block->prop.requestedHandleTypes : 0;
		break;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*value = host ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
			      : mapping->access >> (2 * mapping->block->device) & 3;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*value = mapping ? (uint64_t)object_handle(mapping->pool) : 0;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: break;
	}
	return true;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	ENTER(cuPointerGetAttribute);
	size_t size = attribute_size(attribute);
	uint64_t value;
	if (!data || !size || !attribute_of(address, attribute, &value))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(data, &value, size);
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
				CUdeviceptr address)
{
	ENTER(cuPointerGetAttributes);
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (!attribute_size(attributes[i]) || !data[i])
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		uint64_t value;
		if (!attribute_of(address, attributes[i], &value))
			value = attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (uint64_t)-2
										     : 0; // unknown to CUDA
		memcpy(data[i], &value, attribute_size(attributes[i]));
	}
	return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	ENTER(cuIpcGetMemHandle);
	struct mapping *mapping = mapping_at(address);
	if (!handle || !mapping || !mapping->context || mapping->pool)
		return CUDA_ERROR_INVALID_VALUE; // handles and pools are shared by other means
	uint64_t description[4] = {(uint64_t)getpid(), mapping->node.key, mapping->size, mapping->id};
	memset(handle, 0, sizeof *handle);
	memcpy(handle, description, sizeof description);
	return CUDA_SUCCESS;
}
