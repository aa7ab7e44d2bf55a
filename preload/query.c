/* query has what CUDA is asked about addresses: the attributes and IPC handle of memory of ours, paused too. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

/* The part of cudaPointerAttributes that 12 and 13 have in common. */
struct attributes {
	int type;
	int device;
	void *device_pointer;
	void *host_pointer;
};
enum { MEMORY_TYPE_DEVICE = 2 };

/* CUDA knows active mappings of the program's own too, and nothing of paused ones. */
static bool is_paused_mapping(int code, const struct attributes *attributes)
{
	return unlikely(atomic_load(&mapping_tracked)) && (code != SUCCESS || attributes->type == 0);
}

/* An active segment is device memory to CUDA too. A paused one is nothing to it: no memory is
 * mapped there; but the address is still the allocation's, and on the same device. */
EXPORT int cudaPointerGetAttributes(void *attributes, const void *pointer)
{
	int code = forward_cudaPointerGetAttributes(attributes, pointer);
	if (!attributes || (likely(!arena_contains(pointer)) && !is_paused_mapping(code, attributes)))
		return code;
	int device = -1;
	(void)IN_GO((device = tmsDeviceOf((void *)pointer), SUCCESS));
	if (device < 0)
		return code;
	*(struct attributes *)attributes =
		(struct attributes){MEMORY_TYPE_DEVICE, device, (void *)pointer, NULL};
	return SUCCESS;
}

static int refuse_ipc(void)
{
	return error_fail(ERROR_NOT_SUPPORTED, "pausable memory has no IPC handle; allocate what another process is to "
					       "open outside regions");
}

EXPORT int cudaIpcGetMemHandle(void *handle, void *pointer)
{
	if (likely(!arena_contains(pointer)))
		return everything_note(__func__, forward_cudaIpcGetMemHandle(handle, pointer));
	return refuse_ipc();
}

EXPORT int cuIpcGetMemHandle(void *handle, uintptr_t pointer)
{
	if (likely(!arena_contains((void *)pointer)))
		return everything_note(__func__, forward_cuIpcGetMemHandle(handle, pointer));
	return refuse_ipc();
}
