/* pausable is the core of entering the engine for memory: settings in, a code out. */
#define _GNU_SOURCE
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"
#include "region.h"
#include "tms.h"

HIDDEN unsigned malloc_flags(struct region_settings settings)
{
	return (settings.cpu_backup ? MALLOC_CPU_BACKUP : 0) |
	       (settings.disk_backup ? MALLOC_DISK_BACKUP : 0) |
	       (settings.peer ? MALLOC_PEER_BACKUP : 0) |
	       (settings.incremental ? MALLOC_INCREMENTAL : 0) |
	       (settings.backend == REGION_MMAP ? MALLOC_MMAP_BACKEND : 0) |
	       (atomic_load(&captures) ? MALLOC_CAPTURING : 0);
}

HIDDEN int pausable_malloc(void **pointer, size_t size, int device)
{
	struct region_settings settings = region_get();
	void *address = NULL, *context = NULL;
	struct visit saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		if (forward_cuCtxGetCurrent(&context) != SUCCESS)
			context = NULL; /* the engine meets it again, with words */
		code = tmsMalloc(&address, size, device, context, (char *)settings.tag, malloc_flags(settings),
				 settings.peer - 2, atomic_load(&region_process.margin_bytes));
		go_leave(&saved);
	}
	if (code == SUCCESS)
		*pointer = address;
	return code;
}

HIDDEN int pausable_free(void *pointer)
{
	struct visit saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		code = tmsFree(pointer, atomic_load(&captures) != 0);
		go_leave(&saved);
	}
	return code;
}

HIDDEN int current_device(int *device)
{
	if (unlikely(go_now() == GO_DEAD))
		return go_start(); /* its words say more than CUDA's refusal after fork */
	int code = forward_cudaGetDevice(device);
	if (code == FORWARD_MISSING)
		return error_fail(code, "no libcudart is loaded that could be found; a statically linked one "
					"cannot be reached");
	if (code != SUCCESS)
		return error_fail(code, "cudaGetDevice failed with %d", code);
	return SUCCESS;
}

HIDDEN int pausable_malloc_here(void **pointer, size_t size)
{
	int device = 0;
	if (!pointer)
		return error_fail(ERROR_INVALID_VALUE, "the pointer to fill in is NULL");
	int code = current_device(&device);
	return code == SUCCESS ? pausable_malloc(pointer, size, device) : code;
}

HIDDEN int pausable_free_after(void *pointer, void *stream)
{
	struct visit saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		code = tmsFreeAfter(pointer, stream);
		go_leave(&saved);
	}
	return code;
}

EXPORT void *tms_torch_malloc(ssize_t size, int device, void *stream)
{
	/* Mapped for the whole device when the call returns, whatever the stream. */
	void *pointer = NULL;
	if (size < 0) {
		error_fail(ERROR_INVALID_VALUE, "tms_torch_malloc: %zd is no size", size);
		return NULL;
	}
	int code = pausable_malloc(&pointer, (size_t)size, device);
	trace_malloc(code, pointer, (size_t)size, stream);
	return code == SUCCESS ? pointer : NULL;
}

EXPORT void tms_torch_free(void *address, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	struct trace_block block = trace_free(address, stream); /* which waits for the whole device */
	int code = SUCCESS;
	if (arena_contains(address))
		code = pausable_free(address);
	else if (address)
		code = forward_cudaFree(address);
	if (code != SUCCESS)
		trace_unfree(block);
}
