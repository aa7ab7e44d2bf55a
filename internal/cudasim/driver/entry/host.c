// Pinned host memory: what programs are refused, and what a free waits for. memory/host.c has the ranges.
#include <sys/mman.h>

#include "entry/gate.h"

static uint64_t context_key(void)
{
	return current_context()->object.node.key;
}

static CUresult allocate(void **pointer, size_t size, unsigned flags)
{
	if (!pointer || !size || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(capture_forbids_unsafe());
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!host_range_new((uint64_t)at, size, flags, context_key(), false)) {
		munmap(at, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pointer = at;
	return CUDA_SUCCESS;
}

static CUresult forget(void *pointer, bool registered, CUresult unknown)
{
	struct host_range *range = (struct host_range *)tree_find(&memory.host, (uint64_t)pointer);
	if (!range || range->registered != registered)
		return unknown;
	TRY(capture_forbids_unsafe());
	queue_run_free();
	queue_wait((struct target){.address = range->node.key, .size = range->size});
	range = (struct host_range *)tree_find(&memory.host, (uint64_t)pointer);
	if (range)
		host_range_delete(range);
	return CUDA_SUCCESS;
}

static bool present(uint64_t address, uint64_t size)
{
	uint64_t start = address & ~4095ull;
	return !msync((void *)start, address + size - start, MS_ASYNC); // fails on addresses without memory
}

static CUresult register_range(void *pointer, size_t size, unsigned flags)
{
	uint64_t address = (uint64_t)pointer, end;
	if (!pointer || !size || flags & ~15u || __builtin_add_overflow(address, size, &end))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(capture_forbids_unsafe());
	struct host_range *other = (struct host_range *)tree_floor(&memory.host, end - 1);
	if (other && other->node.key + other->size > address)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (memory_place(copy_reach(0), address, size, false) != PLACE_HOST || !present(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	return host_range_new(address, size, flags, context_key(), true) ? CUDA_SUCCESS
									 : CUDA_ERROR_OUT_OF_MEMORY;
}

#define HOST_GIVES(host, pointer, value) \
	(host_range_at((uint64_t)(host)) ? GIVES(pointer, value) : CUDA_ERROR_INVALID_VALUE)

HOST_FUNCTIONS(DEFINE)
