/* interpose is the core of standing in front of libcudart: one flag read, then the real function. */
#define _GNU_SOURCE
#include "seam.h"
#include "forward.h"
#include "region.h"

EXPORT int cudaMalloc(void **pointer, size_t size)
{
	return ALLOCATING(pointer, size, NULL, TAKING(), forward_cudaMalloc(pointer, size),
			  pausable_malloc_here(pointer, size));
}

FREEING(cudaFree, (void *pointer), (pointer), pointer, TRACE_SAME_STREAM, forward_cudaFree(pointer),
	pausable_free(pointer))

