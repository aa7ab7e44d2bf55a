/* query has what CUDA is asked about addresses and for functions: the attributes and IPC handle of memory of ours,
 * paused too; and for a function that this library stands in front of, ours. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

#include <string.h>

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
		return forward_cudaIpcGetMemHandle(handle, pointer);
	return refuse_ipc();
}

EXPORT int cuIpcGetMemHandle(void *handle, uintptr_t pointer)
{
	if (likely(!arena_contains((void *)pointer)))
		return forward_cuIpcGetMemHandle(handle, pointer);
	return refuse_ipc();
}

/* Functions that a program asks for by name, as PyTorch does for those of the driver. */

int cuMemAddressFree(uintptr_t, size_t);
int cuMemCreate(uint64_t *, size_t, const void *, unsigned long long);
int cuMemExportToShareableHandle(void *, uint64_t, int, unsigned long long);
int cuMemGetAllocationPropertiesFromHandle(void *, uint64_t);
int cuMemMap(uintptr_t, size_t, size_t, uint64_t, unsigned long long);
int cuMemRelease(uint64_t);
int cuMemRetainAllocationHandle(uint64_t *, void *);
int cuMemSetAccess(uintptr_t, size_t, const void *, size_t);
int cuMemUnmap(uintptr_t, size_t);
int cuGetProcAddress(const char *, void **, int, uint64_t);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

/* All of these have had one signature since there are such functions (11.2). */
static const struct {
	const char *name;
	void *function;
} entries[] = {
#define ENTRY(name) {#name, (void *)name}
	ENTRY(cuMemAddressFree),
	ENTRY(cuMemCreate),
	ENTRY(cuMemExportToShareableHandle),
	ENTRY(cuMemGetAllocationPropertiesFromHandle),
	ENTRY(cuMemMap),
	ENTRY(cuMemRelease),
	ENTRY(cuMemRetainAllocationHandle),
	ENTRY(cuMemSetAccess),
	ENTRY(cuMemUnmap),
#undef ENTRY
};
enum { PROC_ADDRESS_V2_SINCE = 12000 };

/* The signature of these depends on their version, so the driver's choice is looked up. */
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxCreate_v3(void **, void *, int, unsigned, int);
int cuCtxCreate_v4(void **, void *, unsigned, int);
int cuCtxDestroy_v2(void *);
static const struct {
	const char *name;
	void *function;
} versioned[] = {
#define ENTRY(name) {#name, (void *)name}
	ENTRY(cuCtxCreate_v2),
	ENTRY(cuCtxCreate_v3),
	ENTRY(cuCtxCreate_v4),
	ENTRY(cuCtxDestroy_v2),
#undef ENTRY
};

static void *ours(const char *name, int version, const void *theirs)
{
	for (size_t i = 0; strncmp(name, "cuCtx", 5) == 0 && i < sizeof versioned / sizeof *versioned; i++)
		if (strncmp(versioned[i].name, name, strlen(name)) == 0 && forward_find(versioned[i].name) == theirs)
			return versioned[i].function;
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
		if (strcmp(entries[i].name, name) == 0)
			return entries[i].function;
	if (strcmp(name, "cuGetProcAddress") == 0)
		return version >= PROC_ADDRESS_V2_SINCE ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
	return NULL;
}

static int found(int code, const char *name, void **function, int version)
{
	void *mine = code == SUCCESS && name && function && *function ? ours(name, version, *function) : NULL;
	if (mine)
		*function = mine;
	return code;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return found(forward_cuGetProcAddress(name, function, version, flags), name, function, version);
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	return found(forward_cuGetProcAddress_v2(name, function, version, flags, status), name, function, version);
}

/* The version that cudaGetDriverEntryPoint means is libcudart's own: 12 or later. */
EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPoint(name, function, flags, status);
	return found(code, name, function, PROC_ADDRESS_V2_SINCE);
}

EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
					 unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPointByVersion(name, function, version, flags, status);
	return found(code, name, function, (int)version);
}

EXPORT int cudaGetDriverEntryPoint_ptsz(const char *name, void **function, unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPoint_ptsz(name, function, flags, status);
	return found(code, name, function, PROC_ADDRESS_V2_SINCE);
}

EXPORT int cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **function, unsigned version,
					 unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPointByVersion_ptsz(name, function, version, flags, status);
	return found(code, name, function, (int)version);
}
