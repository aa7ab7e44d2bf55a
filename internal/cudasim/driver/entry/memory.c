// cuMemAlloc and its kind, and queries about an address. The memory comes from memory/heap.c.
#include <string.h>
#include <unistd.h>

#include "base/process.h"
#include "entry/gate.h"

enum { PITCH = 512 };

static CUresult allocate(CUdeviceptr *address, size_t size)
{
	if (!address || !size)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(capture_forbids_unsafe());
	struct context *context = current_context();
	uint64_t at;
	TRY(memory_allocate(context->device, context->object.node.key, size, NULL, &at));
	*address = at;
	return CUDA_SUCCESS;
}

static CUresult allocate_rows(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			 unsigned element)
{
	size_t padded = (width + PITCH - 1) & ~(size_t)(PITCH - 1), size;
	if (!address || !pitch || !width || !height || (element != 4 && element != 8 && element != 16) ||
	    padded < width || __builtin_mul_overflow(padded, height, &size))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(allocate(address, size));
	*pitch = padded;
	return CUDA_SUCCESS;
}

// Here the host can read and write all device memory, so managed memory never moves.
enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };
static CUresult allocate_managed(CUdeviceptr *address, size_t size, unsigned flags)
{
	if (!address || !size || (flags != ATTACH_GLOBAL && flags != ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(allocate(address, size));
	mapping_at(*address)->managed = true;
	process_shares(1);
	return CUDA_SUCCESS;
}

static CUresult free_when_done(CUdeviceptr address, bool foreign)
{
	struct mapping *mapping = mapping_from(address);
	if (!mapping || !mapping->context || (mapping->block->foreign_fd >= 0) != foreign)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(capture_forbids_unsafe());
	queue_wait((struct target){.device = mapping->block->device + 1});
	if (current_context()->sticky)
		return current_context()->sticky;
	return memory_free(address); // looked up again: the wait ran operations
}

static CUresult info(size_t *available, size_t *total)
{
	int device = current_context()->device;
	if (available)
		*available = budget_free(device);
	if (total)
		*total = memory.devices[device].total;
	return CUDA_SUCCESS;
}

static CUresult range_of(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
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

// Returns the size of an attribute's value, 0 if it is not simulated.
static size_t attribute_size(CUpointer_attribute attribute)
{
	switch ((unsigned)attribute) {
	case 0:
	case 5: return 0; // the driver's P2P tokens
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: // UCX and NCCL leave the rest of an int as it was, so these are ints, too
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return 4;
	default: return attribute <= CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID ? 8 : 0;
	}
}

static bool reserved(uint64_t address)
{
	struct reservation *range = (struct reservation *)tree_floor(&memory.reservations, address);
	return range && address - range->node.key < range->size;
}

// Writes the attribute's value, and reports whether the pointer has the attribute.
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
		*value = context; // 0 for memory from handles
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
	case CU_POINTER_ATTRIBUTE_IS_MANAGED: *value = mapping && mapping->managed; break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: break;
	}
	return true;
}

static CUresult attribute_at(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	size_t size = attribute_size(attribute);
	uint64_t value;
	if (!data || !size || !attribute_of(address, attribute, &value))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(data, &value, size);
	return CUDA_SUCCESS;
}

static CUresult attributes_at(unsigned count, CUpointer_attribute *attributes, void **data,
			 CUdeviceptr address)
{
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

// Memory from handles has no such flag (seen with UCX, its issue 9895).
static CUresult set_attribute_at(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct mapping *mapping = mapping_at(address);
	if (!value || !mapping || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	return mapping->context ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult ipc_export(CUipcMemHandle *handle, CUdeviceptr address)
{
	struct mapping *mapping = mapping_at(address);
	if (!handle || !mapping || !mapping->context || mapping->pool || mapping->managed ||
	    mapping->block->foreign_fd >= 0)
		return CUDA_ERROR_INVALID_VALUE; // handles and pools are shared in other ways
	struct exported exported = block_export(mapping->block, mapping->id);
	memset(handle, 0, sizeof *handle);
	memcpy(handle, &exported, sizeof exported);
	process_shares(1);
	return CUDA_SUCCESS;
}

static CUresult ipc_open(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	enum { LAZY_ENABLE_PEER_ACCESS = 1 };
	struct exported exported;
	struct block *block;
	uint64_t at;
	memcpy(&exported, &handle, sizeof exported);
	if (!address || flags != LAZY_ENABLE_PEER_ACCESS || !exported.size || !device_valid(exported.device))
		return CUDA_ERROR_INVALID_VALUE;
	if (exported.process == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	TRY(block_import(&exported, &block));
	TRY(memory_show(block, current_context()->object.node.key, exported.size, NULL, &at));
	*address = at;
	process_shares(1);
	return CUDA_SUCCESS;
}

MEMORY_FUNCTIONS(DEFINE)
