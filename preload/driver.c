/* driver is the core of standing in front of libcuda, for hosts that link it directly. */
#define _GNU_SOURCE
#include "seam.h"
#include "forward.h"
#include "region.h"

HIDDEN int pausable_driver_malloc(uintptr_t *pointer, size_t size)
{
	int device = 0;
	void *address = NULL;
	/* The driver, unlike the runtime, takes neither zero bytes nor a thread without a context. */
	if (!pointer || size == 0)
		return error_fail(ERROR_INVALID_VALUE, "a pointer to fill in and a size are needed");
	int code = forward_cuCtxGetDevice(&device);
	if (code != SUCCESS)
		return error_fail(code, "cuCtxGetDevice failed with %d", code);
	code = pausable_malloc(&address, size, device);
	if (code == SUCCESS)
		*pointer = (uintptr_t)address;
	return code;
}

EXPORT int cuMemAlloc_v2(uintptr_t *pointer, size_t size)
{
	return ALLOCATING(pointer, size, NULL, TAKING(), forward_cuMemAlloc_v2(pointer, size),
			  pausable_driver_malloc(pointer, size));
}

static int pausable_driver_pitch(uintptr_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
	size_t row = 0, size = 0;
	if (!pitch || (element != 4 && element != 8 && element != 16) ||
	    !pausable_pitch(width, height, 1, &row, &size))
		return error_fail(ERROR_INVALID_VALUE, "cuMemAllocPitch takes elements of 4, 8 or 16 bytes and rows "
						       "that fit into memory");
	int code = pausable_driver_malloc(pointer, size);
	if (code == SUCCESS)
		*pitch = row;
	return code;
}

EXPORT int cuMemAllocPitch_v2(uintptr_t *pointer, size_t *pitch, size_t width, size_t height,
			      unsigned element)
{
	return ALLOCATING(pointer, width * height, NULL, TAKING(),
			  forward_cuMemAllocPitch_v2(pointer, pitch, width, height, element),
			  pausable_driver_pitch(pointer, pitch, width, height, element));
}

FREEING(cuMemFree_v2, (uintptr_t pointer), (pointer), (void *)pointer, TRACE_SAME_STREAM,
	forward_cuMemFree_v2(pointer), pausable_free((void *)pointer))

EXPORT int cuIpcGetMemHandle(void *handle, uintptr_t pointer)
{
	if (likely(!arena_contains((void *)pointer)))
		return forward_cuIpcGetMemHandle(handle, pointer);
	return refuse_ipc();
}
