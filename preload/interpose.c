/* interpose is the core of standing in front of libcudart: one flag read, then the real function. */
#define _GNU_SOURCE
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"
#include "region.h"
#include "tms.h"

static unsigned malloc_flags(struct region_settings settings)
{
	return (settings.cpu_backup ? MALLOC_CPU_BACKUP : 0) |
	       (settings.disk_backup ? MALLOC_DISK_BACKUP : 0) |
	       (settings.backend == REGION_MMAP ? MALLOC_MMAP : 0) |
	       (atomic_load(&captures) ? MALLOC_CAPTURING : 0);
}

static int pausable_malloc(void **pointer, size_t size, int device)
{
	struct region_settings settings = region_get();
	void *address = NULL;
	sigset_t saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		code = tmsMalloc(&address, size, device, (char *)settings.tag, malloc_flags(settings),
				 atomic_load(&region_process.margin_bytes));
		go_leave(&saved);
	}
	if (code == SUCCESS)
		*pointer = address;
	return code;
}

static int pausable_free(void *pointer)
{
	sigset_t saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		code = tmsFree(pointer, atomic_load(&captures) != 0);
		go_leave(&saved);
	}
	return code;
}

static __attribute__((noinline)) int malloc_in_region(void **pointer, size_t size)
{
	int device = 0;
	if (!pointer)
		return error_fail(ERROR_INVALID_VALUE, "cudaMalloc: the pointer to fill in is NULL");
	int code = forward_cudaGetDevice(&device);
	if (code == FORWARD_MISSING)
		return error_fail(code, "cudaMalloc: no libcudart is loaded that could be found; a statically "
					"linked one cannot be reached");
	if (code != SUCCESS)
		return code;
	return pausable_malloc(pointer, size, device);
}

EXPORT int cudaMalloc(void **pointer, size_t size)
{
	if (likely(!region_active()))
		return forward_cudaMalloc(pointer, size);
	return malloc_in_region(pointer, size);
}

EXPORT int cudaFree(void *pointer)
{
	if (likely(!arena_contains(pointer)))
		return forward_cudaFree(pointer);
	return pausable_free(pointer);
}

EXPORT void *tms_torch_malloc(ssize_t size, int device, void *stream)
{
	(void)stream; /* mapped for the whole device when the call returns, whatever the stream */
	void *pointer = NULL;
	if (size < 0) {
		error_fail(ERROR_INVALID_VALUE, "tms_torch_malloc: %zd is no size", size);
		return NULL;
	}
	return pausable_malloc(&pointer, (size_t)size, device) == SUCCESS ? pointer : NULL;
}

EXPORT void tms_torch_free(void *address, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	(void)stream; /* the free waits for the whole device */
	cudaFree(address);
}
