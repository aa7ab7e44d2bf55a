/* ipc has CUDA's functions for memory that processes share by handles of 64 bytes. A handle of pausable memory is made
 * by this library, and says which process to ask, and for what: ipc.go asks, and internal/control/server answers. A
 * process without this library cannot open such a handle. All other handles are CUDA's own, and an obstacle to the
 * driver's checkpoint. Pausable memory is no obstacle, because it is gone when everything is paused. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct ipc_handle) == sizeof(struct forward_ipc), "a handle has 64 bytes");

static const char magic[8] = {'t', 'm', 's', '-', 'i', 'p', 'c', '1'};

static int share(struct ipc_handle *handle, uintptr_t pointer)
{
	if (!handle)
		return error_fail(ERROR_INVALID_VALUE, "the handle to fill in is NULL");
	struct ipc_handle made = {.pid = (uint32_t)getpid()};
	memcpy(made.magic, magic, sizeof magic);
	int code = IN_GO(tmsShare(pointer, &made));
	if (code == SUCCESS)
		code = operation_serve(); /* the process that opens it asks there */
	if (code == SUCCESS)
		*handle = made;
	return code;
}

/* NCCL registers shareable memory with other processes when a captured graph has it as a buffer, and goes on using it
 * after a pause. It takes the handles for that from the driver itself, so only libtms_reach.so can refuse them. */
HIDDEN bool ipc_shares(void)
{
	return region_config.shareable < 0 ? !gate_unusable() : region_config.shareable;
}

static bool is_ours(const struct forward_ipc *handle)
{
	return memcmp(handle, magic, sizeof magic) == 0;
}

static int open_ours(void **pointer, const struct forward_ipc *handle, int (*device)(int *))
{
	struct ipc_handle asked;
	uint64_t address = 0;
	if (!pointer)
		return error_fail(ERROR_INVALID_VALUE, "the pointer to fill in is NULL");
	memcpy(&asked, handle, sizeof asked);
	int code = operation_import(OPERATION_IMPORT, &asked, device, &address);
	if (code == SUCCESS)
		*pointer = (void *)(uintptr_t)address;
	return code;
}

static int close_ours(uintptr_t pointer)
{
	struct operation operation = {.kind = OPERATION_CLOSE, .address = pointer};
	return operation_apart(&operation, NULL);
}

/* The driver's pointers are numbers. current finds the device on which memory is opened. */
#define SHARES(api, version, type, current)                                                        \
	EXPORT int api##IpcGetMemHandle(void *handle, type pointer)                                \
	{                                                                                          \
		if (unlikely(arena_contains((void *)pointer)))                                     \
			return RESULT_OF(api, share(handle, (uintptr_t)pointer));                  \
		return obstacle_note(__func__, forward_##api##IpcGetMemHandle(handle, pointer));   \
	}                                                                                          \
	EXPORT int api##IpcOpenMemHandle##version(type *pointer, struct forward_ipc handle, unsigned flags) \
	{                                                                                          \
		if (is_ours(&handle))                                                              \
			return RESULT_OF(api, open_ours((void **)pointer, &handle, current));      \
		return obstacle_note(__func__, forward_##api##IpcOpenMemHandle##version(pointer, handle, flags)); \
	}                                                                                          \
	EXPORT int api##IpcCloseMemHandle(type pointer)                                            \
	{                                                                                          \
		return unlikely(arena_contains((void *)pointer))                                   \
			       ? RESULT_OF(api, close_ours((uintptr_t)pointer))                    \
			       : forward_##api##IpcCloseMemHandle(pointer);                        \
	}
SHARES(cuda, , void *, current_device)
SHARES(cu, _v2, uintptr_t, current_device_of_driver)
