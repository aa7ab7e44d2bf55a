/* free has the functions that free: addresses of ours go to the engine, all others are CUDA's. */
#define _GNU_SOURCE
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"
#include "region.h"

HIDDEN int pausable_free(void *pointer)
{
	struct visit saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		code = tmsFree(pointer);
		go_leave(&saved);
	}
	return code;
}

static int pausable_free_after(void *pointer, void *stream)
{
	struct visit saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		code = tmsFreeAfter(pointer, stream);
		go_leave(&saved);
	}
	return code;
}

FREEING(cudaFree, (void *pointer), (pointer), pointer, TRACE_SAME_STREAM, forward_cudaFree(pointer),
	pausable_free(pointer))

FREEING(cuMemFree_v2, (uintptr_t pointer), (pointer), (void *)pointer, TRACE_SAME_STREAM,
	forward_cuMemFree_v2(pointer), pausable_free((void *)pointer))

/* Stream-ordered: what is freed goes when its stream has come to the free. */
static int free_after(void *pointer, void *stream, bool captured)
{
	if (captured)
		return error_fail(ERROR_NOT_SUPPORTED, "pausable memory cannot be freed by a captured stream; free it "
						       "outside the capture");
	return pausable_free_after(pointer, stream);
}

#define FREE_RUNTIME(suffix, which)                                                               \
	FREEING(cudaFreeAsync##suffix, (void *pointer, void *stream), (pointer, stream), pointer,  \
		which(stream), forward_cudaFreeAsync##suffix(pointer, stream),                     \
		free_after(pointer, which(stream),                                                 \
			   is_captured(forward_cudaStreamIsCapturing##suffix, stream)))

#define FREE_DRIVER(suffix, which)                                                                \
	FREEING(cuMemFreeAsync##suffix, (uintptr_t pointer, void *stream), (pointer, stream),      \
		(void *)pointer, which(stream), forward_cuMemFreeAsync##suffix(pointer, stream),   \
		free_after((void *)pointer, which(stream),                                         \
			   is_captured(forward_cuStreamIsCapturing##suffix, stream)))

FREE_RUNTIME(, )
FREE_RUNTIME(_ptsz, own_stream)
FREE_DRIVER(, )
FREE_DRIVER(_ptsz, own_stream)
