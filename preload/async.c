/* async is the core of stream-ordered allocation: memory made in a region is there at once, which
 * every order allows; freed memory goes when its stream has come to the free. While the stream is
 * being captured the graph owns what it allocates, so that stays CUDA's. */
#include "seam.h"
#include "forward.h"
#include "region.h"

static bool is_captured(int (*query)(void *, int *), void *stream)
{
	int status = 0;
	return atomic_load(&captures) > 0 && query(stream, &status) == SUCCESS && status != 0;
}

static int free_after(void *pointer, void *stream, bool captured)
{
	if (captured)
		return error_fail(ERROR_NOT_SUPPORTED, "pausable memory cannot be freed by a captured stream; free it "
						       "outside the capture");
	return pausable_free_after(pointer, stream);
}

#define OURS(is_capturing) (TAKING() && !is_captured(is_capturing, stream))

#define RUNTIME(suffix, which)                                                                     \
	EXPORT int cudaMallocAsync##suffix(void **pointer, size_t size, void *stream)              \
	{                                                                                          \
		return ALLOCATING(                                                                 \
			pointer, size, which(stream),                                              \
			OURS(forward_cudaStreamIsCapturing##suffix),                               \
			forward_cudaMallocAsync##suffix(pointer, size, stream),                    \
			pausable_malloc_here(pointer, size));                                      \
	}                                                                                          \
                                                                                                   \
	EXPORT int cudaMallocFromPoolAsync##suffix(void **pointer, size_t size, void *pool,        \
						   void *stream)                                   \
	{                                                                                          \
		return ALLOCATING(                                                                 \
			pointer, size, which(stream),                                              \
			OURS(forward_cudaStreamIsCapturing##suffix),                               \
			forward_cudaMallocFromPoolAsync##suffix(pointer, size, pool, stream),      \
			pausable_malloc_here(pointer, size));                                      \
	}                                                                                          \
                                                                                                   \
	FREEING(cudaFreeAsync##suffix, (void *pointer, void *stream), (pointer, stream), pointer,  \
		which(stream), forward_cudaFreeAsync##suffix(pointer, stream),                     \
		free_after(pointer, which(stream),                                                 \
			   is_captured(forward_cudaStreamIsCapturing##suffix, stream)))

#define DRIVER(suffix, which)                                                                      \
	EXPORT int cuMemAllocAsync##suffix(uintptr_t *pointer, size_t size, void *stream)          \
	{                                                                                          \
		return ALLOCATING(                                                                 \
			pointer, size, which(stream), OURS(forward_cuStreamIsCapturing##suffix),   \
			forward_cuMemAllocAsync##suffix(pointer, size, stream),                    \
			pausable_driver_malloc(pointer, size));                                    \
	}                                                                                          \
                                                                                                   \
	EXPORT int cuMemAllocFromPoolAsync##suffix(uintptr_t *pointer, size_t size, void *pool,    \
						   void *stream)                                   \
	{                                                                                          \
		return ALLOCATING(                                                                 \
			pointer, size, which(stream), OURS(forward_cuStreamIsCapturing##suffix),   \
			forward_cuMemAllocFromPoolAsync##suffix(pointer, size, pool, stream),      \
			pausable_driver_malloc(pointer, size));                                    \
	}                                                                                          \
                                                                                                   \
	FREEING(cuMemFreeAsync##suffix, (uintptr_t pointer, void *stream), (pointer, stream),      \
		(void *)pointer, which(stream), forward_cuMemFreeAsync##suffix(pointer, stream),   \
		free_after((void *)pointer, which(stream),                                         \
			   is_captured(forward_cuStreamIsCapturing##suffix, stream)))

RUNTIME(, )
RUNTIME(_ptsz, own_stream)
DRIVER(, )
DRIVER(_ptsz, own_stream)
