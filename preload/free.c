/* free has the functions that free memory. They pass pausable memory to the engine, and everything else to CUDA. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

HIDDEN int pausable_free(void *pointer)
{
	return IN_GO(tmsFree(pointer));
}

static inline bool watches(const void *pointer)
{
	return unlikely(arena_contains(pointer) || watch_is_on(WATCH_CALLS));
}

/* Frees watched memory. WATCHED needs a stack frame, so it is in a function of its own: all other frees are passed on
 * without a frame. */
#define WATCHED(pointer, stream, plain, ours)                                                      \
	({                                                                                         \
		struct watch_free noted_ = watch_freeing(pointer, stream);                         \
		int freed_ = arena_contains(pointer) ? (ours) : (plain);                           \
		watch_freed(freed_, &noted_);                                                      \
		freed_;                                                                            \
	})

OUT_OF_LINE int watched_cudaFree(void *pointer)
{
	return WATCHED(pointer, WATCH_SAME_STREAM, forward_cudaFree(pointer),
		       runtime_result(pausable_free(pointer)));
}

HOT EXPORT int cudaFree(void *pointer)
{
	return watches(pointer) ? watched_cudaFree(pointer) : forward_cudaFree(pointer);
}

OUT_OF_LINE int watched_cuMemFree_v2(uintptr_t pointer)
{
	return WATCHED((void *)pointer, WATCH_SAME_STREAM, forward_cuMemFree_v2(pointer),
		       pausable_free((void *)pointer));
}

EXPORT int cuMemFree_v2(uintptr_t pointer)
{
	return watches((void *)pointer) ? watched_cuMemFree_v2(pointer) : forward_cuMemFree_v2(pointer);
}

/* Stream-ordered: the memory is freed when the stream has reached the free. */
static int free_after(void *pointer, void *stream, bool captured)
{
	if (captured)
		return error_fail(ERROR_NOT_SUPPORTED, "pausable memory cannot be freed by a captured stream; free it "
						       "outside the capture");
	return repeat_free(pointer, stream) ? SUCCESS : IN_GO(tmsFreeAfter(pointer, stream));
}

/* own: the stream that the suffix means. */
#define FREES_ORDERED(api, name, suffix, type, is_capturing, own)                                       \
	OUT_OF_LINE int watched_##name##suffix(type pointer, void *stream)                         \
	{                                                                                          \
		return WATCHED((void *)pointer, own, forward_##name##suffix(pointer, stream),      \
			       RESULT_OF(api, free_after((void *)pointer, own,                     \
							 is_captured(forward_##is_capturing##suffix, stream)))); \
	}                                                                                          \
	EXPORT int name##suffix(type pointer, void *stream)                                        \
	{                                                                                          \
		return watches((void *)pointer) ? watched_##name##suffix(pointer, stream)          \
						: forward_##name##suffix(pointer, stream);         \
	}
FREES_ORDERED(cuda, cudaFreeAsync, , void *, cudaStreamIsCapturing, stream)
FREES_ORDERED(cuda, cudaFreeAsync, _ptsz, void *, cudaStreamIsCapturing, own_stream(stream))
FREES_ORDERED(cu, cuMemFreeAsync, , uintptr_t, cuStreamIsCapturing, stream)
FREES_ORDERED(cu, cuMemFreeAsync, _ptsz, uintptr_t, cuStreamIsCapturing, own_stream(stream))
