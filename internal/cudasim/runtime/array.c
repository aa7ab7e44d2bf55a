// CUDA arrays: memory with a shape. Kept only to be allocated, described and freed.
#include <stdlib.h>

#include "runtime.h"

struct cudaArray {
	struct cudaChannelFormatDesc format;
	struct cudaExtent extent;
	unsigned flags;
	CUdeviceptr memory;
};

static cudaError_t create(cudaArray_t *array, const struct cudaChannelFormatDesc *format,
			  struct cudaExtent extent, unsigned flags)
{
	READY();
	if (!array || !format || !extent.width)
		return result(cudaErrorInvalidValue);
	size_t element = (size_t)(format->x + format->y + format->z + format->w) / 8;
	size_t rows = (extent.height ? extent.height : 1) * (extent.depth ? extent.depth : 1), size;
	if (!element || __builtin_mul_overflow(extent.width * element, rows, &size))
		return result(cudaErrorInvalidValue);
	struct cudaArray *made = malloc(sizeof *made);
	if (!made)
		return result(cudaErrorMemoryAllocation);
	*made = (struct cudaArray){*format, extent, flags, 0};
	int error = cu.cuMemAlloc_v2(&made->memory, size);
	if (error) {
		free(made);
		return result(error);
	}
	*array = made;
	return cudaSuccess;
}

EXPORT cudaError_t cudaMallocArray(cudaArray_t *array, const struct cudaChannelFormatDesc *format,
				   size_t width, size_t height, unsigned flags)
{
	return create(array, format, (struct cudaExtent){width, height, 0}, flags);
}

EXPORT cudaError_t cudaMalloc3DArray(cudaArray_t *array, const struct cudaChannelFormatDesc *format,
				     struct cudaExtent extent, unsigned flags)
{
	return create(array, format, extent, flags);
}

EXPORT cudaError_t cudaFreeArray(cudaArray_t array)
{
	READY();
	if (!array)
		return cudaSuccess;
	int error = cu.cuMemFree_v2(array->memory);
	if (!error)
		free(array);
	return result(error);
}

EXPORT cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc *format, struct cudaExtent *extent,
				    unsigned *flags, cudaArray_t array)
{
	if (!array)
		return result(cudaErrorInvalidValue);
	if (format)
		*format = array->format;
	if (extent)
		*extent = array->extent;
	if (flags)
		*flags = array->flags;
	return cudaSuccess;
}

EXPORT struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, int kind)
{
	return (struct cudaChannelFormatDesc){x, y, z, w, kind};
}
