// CUDA arrays: memory with a shape. Programs can only allocate and free them, so an array is its memory's address.
#include "runtime.h"

static int create(cudaArray_t *array, const struct cudaChannelFormatDesc *format, struct cudaExtent extent)
{
	if (!array || !format || !extent.width)
		return cudaErrorInvalidValue;
	size_t element = (size_t)(format->x + format->y + format->z + format->w) / 8;
	size_t rows = (extent.height ? extent.height : 1) * (extent.depth ? extent.depth : 1), size;
	if (!element || __builtin_mul_overflow(extent.width * element, rows, &size))
		return cudaErrorInvalidValue;
	return cu.cuMemAlloc_v2((CUdeviceptr *)array, size);
}

PASS(ready, cudaMallocArray,
     (cudaArray_t *array, const struct cudaChannelFormatDesc *format, size_t width, size_t height, unsigned flags),
     ((void)flags, create(array, format, (struct cudaExtent){width, height, 0})))
PASS(ready, cudaMalloc3DArray,
     (cudaArray_t *array, const struct cudaChannelFormatDesc *format, struct cudaExtent extent, unsigned flags),
     ((void)flags, create(array, format, extent)))
PASS(ready, cudaFreeArray, (cudaArray_t array), array ? cu.cuMemFree_v2((CUdeviceptr)array) : CUDA_SUCCESS)
