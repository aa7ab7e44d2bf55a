// CUDA arrays: memory with a shape. Programs can only allocate, describe and free them.
#include <stdlib.h>

#include "runtime.h"

struct cudaArray {
	struct cudaChannelFormatDesc format;
	struct cudaExtent extent;
	unsigned flags;
	CUdeviceptr memory;
};

static int create(cudaArray_t *array, const struct cudaChannelFormatDesc *format,
			  struct cudaExtent extent, unsigned flags)
{
	if (!array || !format || !extent.width)
		return cudaErrorInvalidValue;
	size_t element = (size_t)(format->x + format->y + format->z + format->w) / 8;
	size_t rows = (extent.height ? extent.height : 1) * (extent.depth ? extent.depth : 1), size;
	if (!element || __builtin_mul_overflow(extent.width * element, rows, &size))
		return cudaErrorInvalidValue;
	struct cudaArray *made = malloc(sizeof *made);
	if (!made)
		return cudaErrorMemoryAllocation;
	*made = (struct cudaArray){*format, extent, flags, 0};
	int error = cu.cuMemAlloc_v2(&made->memory, size);
	if (error) {
		free(made);
		return error;
	}
	*array = made;
	return cudaSuccess;
}

static int release(cudaArray_t array)
{
	int error = array ? (int)cu.cuMemFree_v2(array->memory) : cudaSuccess;
	if (!error)
		free(array);
	return error;
}

PASS(ready, cudaMallocArray,
     (cudaArray_t *array, const struct cudaChannelFormatDesc *format, size_t width, size_t height, unsigned flags),
     create(array, format, (struct cudaExtent){width, height, 0}, flags))
PASS(ready, cudaMalloc3DArray,
     (cudaArray_t *array, const struct cudaChannelFormatDesc *format, struct cudaExtent extent, unsigned flags),
     create(array, format, extent, flags))
PASS(ready, cudaFreeArray, (cudaArray_t array), release(array))
