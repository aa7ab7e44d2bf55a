// Stream-ordered allocation from pools, which hold no free memory. An allocation has its memory at once; a free waits
// for its turn on the stream, in execution/queue.c.
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/process.h"
#include "entry/gate.h"

static struct pool *pool_find(CUmemoryPool handle)
{
	struct pool *pool = object_find(handle, POOL);
	return pool && !pool->ended ? pool : NULL;
}

static struct pool *pool_new(int index)
{
	struct pool *pool = object_new(POOL, sizeof *pool);
	if (pool) {
		pool->device = index;
		for (int i = 0; i < 3; i++)
			pool->reuse[i] = 1;
	}
	return pool;
}

static struct pool *pool_default(int index)
{
	struct device *device = &memory.devices[index];
	if (!device->pool)
		device->pool = pool_new(index);
	return device->pool;
}

static struct pool *pool_current(int index)
{
	struct device *device = &memory.devices[index];
	return device->current ? device->current : pool_default(index);
}

static CUresult get_pool(CUmemoryPool *pool, CUdevice device, struct pool *(*of)(int))
{
	TRY(device_check(device, pool));
	*pool = object_handle(of(device));
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_pool(CUdevice device, CUmemoryPool handle)
{
	struct pool *pool = pool_find(handle);
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!pool || pool->device != device)
		return CUDA_ERROR_INVALID_VALUE;
	memory.devices[device].current = pool;
	return CUDA_SUCCESS;
}

static CUresult create(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	if (!handle || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(props->location.id))
		return CUDA_ERROR_INVALID_VALUE;
	struct pool *pool = pool_new(props->location.id);
	if (pool)
		pool->exportable = props->handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	*handle = object_handle(pool);
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Memory in use stays allocated until it is freed.
static CUresult destroy(CUmemoryPool handle)
{
	struct pool *pool = pool_find(handle);
	if (!pool || pool == memory.devices[pool->device].pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (memory.devices[pool->device].current == pool)
		memory.devices[pool->device].current = NULL;
	if (pool->used)
		pool->ended = true;
	else
		object_delete(&pool->object);
	return CUDA_SUCCESS;
}

// Makes a descriptor that stands for the pool in any process. The simulator does not share the pool's memory.
static CUresult export(void *shareable, CUmemoryPool handle, CUmemAllocationHandleType type,
			 unsigned long long flags)
{
	struct pool *pool = pool_find(handle);
	if (!shareable || !pool || !pool->exportable || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
		return CUDA_ERROR_INVALID_VALUE;
	int fd = memfd_create("cudasim-pool", MFD_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)shareable = fd;
	process_shares(1);
	return CUDA_SUCCESS;
}

static CUresult import(CUmemoryPool *handle, void *shareable, CUmemAllocationHandleType type,
			 unsigned long long flags)
{
	struct stat about;
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags ||
	    fstat((int)(intptr_t)shareable, &about) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = object_handle(pool_new(0));
	if (!*handle)
		return CUDA_ERROR_OUT_OF_MEMORY;
	process_shares(1);
	return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t size, const CUmemoryPool *from, CUstream handle)
{
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	struct pool *pool = from ? pool_find(*from) : pool_current(stream->context->device);
	if (!address || !size || (from && !pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	const int device = pool->device; // it may be another device than the stream's
	if (stream->capture) // graph memory nodes are not simulated
		return CUDA_ERROR_NOT_SUPPORTED;
	const struct context *context = stream->context;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	for (int tried = 0; tried < 3 && result == CUDA_ERROR_OUT_OF_MEMORY; tried++) {
		if (tried == 1) // memory freed in stream order may be enough
			queue_run_free();
		if (tried == 2)
			queue_wait((struct target){.freed = device + 1});
		TRY(context->sticky);
		uint64_t at;
		result = memory_allocate(device, context->object.node.key, size, pool, &at);
		if (result == CUDA_SUCCESS)
			*address = at;
	}
	return result;
}

static CUresult free_later(CUdeviceptr address, CUstream handle)
{
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	if (!address)
		return CUDA_SUCCESS;
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct mapping *mapping = mapping_from(address);
	if (!mapping || !mapping->context || mapping->freeing)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_submit(stream, &(struct operation){.type = FREE, .address = address}));
	mapping->freeing = true;
	return CUDA_SUCCESS;
}

// Returns the attribute's place in the pool, NULL if there is no such attribute.
static void *field_of(struct pool *pool, CUmemPool_attribute attribute, size_t *size)
{
	*size = sizeof(uint64_t);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *size = sizeof(int); return &pool->reuse[attribute - 1];
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool->threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->high;
	}
	return NULL;
}

static CUresult get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	size_t size;
	struct pool *pool = pool_find(handle);
	void *field = pool ? field_of(pool, attribute, &size) : NULL;
	if (!field || !value)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(value, field, size);
	return CUDA_SUCCESS;
}

static CUresult set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	size_t size;
	struct pool *pool = pool_find(handle);
	void *field = pool ? field_of(pool, attribute, &size) : NULL;
	if (!field || field == &pool->used || !value)
		return CUDA_ERROR_INVALID_VALUE;
	if (field == &pool->high) {
		if (*(uint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE; // it can only be reset
		value = &pool->used;
	}
	memcpy(field, value, size);
	return CUDA_SUCCESS;
}

POOL_FUNCTIONS(DEFINE, DEFINE_PTSZ)
