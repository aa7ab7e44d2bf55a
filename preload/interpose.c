/* interpose is the core of standing in front of libcudart: one flag read, then the real function. */
#define _GNU_SOURCE
#include "seam.h"
#include "forward.h"
#include "region.h"

EXPORT int cudaMalloc(void **pointer, size_t size)
{
	if (likely(!region_active()))
		return RECLAIMING(size, forward_cudaMalloc(pointer, size));
	return pausable_malloc_here(pointer, size);
}

EXPORT int cudaFree(void *pointer)
{
	if (likely(!arena_contains(pointer)))
		return forward_cudaFree(pointer);
	return pausable_free(pointer);
}

