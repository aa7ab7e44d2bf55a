/* pitched is the core of two- and three-dimensional allocations: rows padded to the pitch. */
#include "seam.h"
#include "forward.h"
#include "region.h"

/* Rows start at multiples of this, as CUDA's do on every current device. */
enum { PITCH = 512 };

HIDDEN bool pausable_pitch(size_t width, size_t height, size_t depth, size_t *pitch, size_t *size)
{
	size_t rows;
	return !__builtin_add_overflow(width, PITCH - 1, pitch) &&
	       (*pitch &= ~(size_t)(PITCH - 1), !__builtin_mul_overflow(height, depth, &rows)) &&
	       !__builtin_mul_overflow(*pitch, rows, size);
}

static int pausable_malloc_pitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	size_t row = 0, size = 0;
	if (!pitch)
		return error_fail(ERROR_INVALID_VALUE, "the pitch to fill in is NULL");
	if (!pausable_pitch(width, height, 1, &row, &size))
		return error_fail(ERROR_MEMORY_ALLOCATION, "%zu rows of %zu bytes are more than any memory", height,
				  width);
	int code = pausable_malloc_here(pointer, size);
	if (code == SUCCESS)
		*pitch = row;
	return code;
}

EXPORT int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	return ALLOCATING(pointer, width * height, NULL, TAKING(),
			  forward_cudaMallocPitch(pointer, pitch, width, height),
			  pausable_malloc_pitch(pointer, pitch, width, height));
}

static int pausable_malloc_3d(struct forward_pitched *pitched, struct forward_extent extent)
{
	size_t row = 0, size = 0;
	void *pointer = NULL;
	if (!pitched)
		return error_fail(ERROR_INVALID_VALUE, "the pitched pointer to fill in is NULL");
	if (!pausable_pitch(extent.width, extent.height, extent.depth, &row, &size))
		return error_fail(ERROR_MEMORY_ALLOCATION, "the extent is more than any memory");
	int code = pausable_malloc_here(&pointer, size);
	if (code == SUCCESS)
		*pitched = (struct forward_pitched){pointer, row, extent.width, extent.height};
	return code;
}

EXPORT int cudaMalloc3D(struct forward_pitched *pitched, struct forward_extent extent)
{
	size_t size = extent.width * extent.height * extent.depth;
	return ALLOCATING(&pitched->pointer, size, NULL, TAKING(),
			  forward_cudaMalloc3D(pitched, extent),
			  pausable_malloc_3d(pitched, extent));
}
