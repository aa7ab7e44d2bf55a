/* entry answers a program that asks CUDA for a function of the driver by name, where it would get one that this library
 * stands in front of. libtms_reach.so (reach/) asks here for what dlsym is to answer. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* X(name, the first CUDA version whose function of the name is this one, for per-thread streams, symbol). */
#define ENTRIES(X)                                                                                         \
	X(cuCtxCreate, 3020, false, cuCtxCreate_v2)                                                        \
	X(cuCtxCreate, 11040, false, cuCtxCreate_v3)                                                       \
	X(cuCtxCreate, 12050, false, cuCtxCreate_v4)                                                       \
	X(cuCtxDestroy, 4000, false, cuCtxDestroy_v2)                                                      \
	X(cuCtxEnablePeerAccess, 4000, false, cuCtxEnablePeerAccess)                                       \
	X(cuDevicePrimaryCtxRelease, 11000, false, cuDevicePrimaryCtxRelease_v2)                           \
	X(cuDevicePrimaryCtxReset, 11000, false, cuDevicePrimaryCtxReset_v2)                               \
	X(cuGetProcAddress, 11030, false, cuGetProcAddress)                                                \
	X(cuGetProcAddress, 12000, false, cuGetProcAddress_v2)                                             \
	X(cuIpcCloseMemHandle, 4010, false, cuIpcCloseMemHandle)                                           \
	X(cuIpcGetMemHandle, 4010, false, cuIpcGetMemHandle)                                               \
	X(cuIpcOpenMemHandle, 11000, false, cuIpcOpenMemHandle_v2)                                         \
	X(cuMemAddressFree, 10020, false, cuMemAddressFree)                                                \
	X(cuMemAlloc, 3020, false, cuMemAlloc_v2)                                                          \
	X(cuMemAllocAsync, 11020, false, cuMemAllocAsync)                                                  \
	X(cuMemAllocAsync, 11020, true, cuMemAllocAsync_ptsz)                                              \
	X(cuMemAllocFromPoolAsync, 11020, false, cuMemAllocFromPoolAsync)                                  \
	X(cuMemAllocFromPoolAsync, 11020, true, cuMemAllocFromPoolAsync_ptsz)                              \
	X(cuMemAllocManaged, 6000, false, cuMemAllocManaged)                                               \
	X(cuMemAllocPitch, 3020, false, cuMemAllocPitch_v2)                                                \
	X(cuMemCreate, 10020, false, cuMemCreate)                                                          \
	X(cuMemExportToShareableHandle, 10020, false, cuMemExportToShareableHandle)                        \
	X(cuMemFree, 3020, false, cuMemFree_v2)                                                            \
	X(cuMemFreeAsync, 11020, false, cuMemFreeAsync)                                                    \
	X(cuMemFreeAsync, 11020, true, cuMemFreeAsync_ptsz)                                                \
	X(cuMemGetAllocationPropertiesFromHandle, 10020, false, cuMemGetAllocationPropertiesFromHandle)    \
	X(cuMemGetAddressRange, 3020, false, cuMemGetAddressRange_v2)                                      \
	X(cuMemImportFromShareableHandle, 10020, false, cuMemImportFromShareableHandle)                    \
	X(cuMemMap, 10020, false, cuMemMap)                                                                \
	X(cuMemPoolDestroy, 11020, false, cuMemPoolDestroy)                                                \
	X(cuMemPoolExportToShareableHandle, 11020, false, cuMemPoolExportToShareableHandle)                \
	X(cuMemPoolImportFromShareableHandle, 11020, false, cuMemPoolImportFromShareableHandle)            \
	X(cuMemRelease, 10020, false, cuMemRelease)                                                        \
	X(cuMemRetainAllocationHandle, 11000, false, cuMemRetainAllocationHandle)                          \
	X(cuMemSetAccess, 10020, false, cuMemSetAccess)                                                    \
	X(cuMemUnmap, 10020, false, cuMemUnmap)                                                            \
	X(cuMulticastBindAddr, 12010, false, cuMulticastBindAddr)                                          \
	X(cuMulticastBindAddr, 13010, false, cuMulticastBindAddr_v2)                                       \
	X(cuMulticastBindMem, 12010, false, cuMulticastBindMem)                                            \
	X(cuMulticastBindMem, 13010, false, cuMulticastBindMem_v2)                                         \
	X(cuMulticastCreate, 12010, false, cuMulticastCreate)                                              \
	X(cuPointerGetAttribute, 4000, false, cuPointerGetAttribute)                                       \
	X(cuPointerGetAttributes, 7000, false, cuPointerGetAttributes)                                     \
	X(cuStreamBeginCapture, 10010, false, cuStreamBeginCapture_v2)                                     \
	X(cuStreamBeginCapture, 10010, true, cuStreamBeginCapture_v2_ptsz)                                 \
	X(cuStreamBeginCaptureToGraph, 12030, false, cuStreamBeginCaptureToGraph)                          \
	X(cuStreamBeginCaptureToGraph, 12030, true, cuStreamBeginCaptureToGraph_ptsz)                      \
	X(cuStreamDestroy, 4000, false, cuStreamDestroy_v2)                                                \
	X(cuStreamEndCapture, 10000, false, cuStreamEndCapture)                                            \
	X(cuStreamEndCapture, 10000, true, cuStreamEndCapture_ptsz)

/* Only addresses are wanted here: their types are in the files that have them. */
#define DECLARE(name, since, per_thread, symbol) extern const char at_##symbol[] __asm__(#symbol);
ENTRIES(DECLARE)
#undef DECLARE

static const struct entry {
	const char *name, *symbol;
	int since;
	bool per_thread;
	const void *function;
} entries[] = {
#define ENTRY(name, since, per_thread, symbol) {#name, #symbol, since, per_thread, at_##symbol},
	ENTRIES(ENTRY)
#undef ENTRY
};
enum { ENTRIES_COUNT = sizeof entries / sizeof *entries };

/* The function of a name that a version of CUDA has, NULL when none is ours. */
static const struct entry *entry_of(const char *name, int version, bool per_thread)
{
	const struct entry *best = NULL;
	for (const struct entry *e = entries; e < entries + ENTRIES_COUNT; e++)
		if (strcmp(e->name, name) == 0 && e->since <= version && (per_thread || !e->per_thread) &&
		    (!best || e->since > best->since || e->per_thread))
			best = e;
	return best;
}

/* Whether the driver has a later function of the name than ours, with a signature that is not known here. */
static bool has_later(const struct entry *e)
{
	const char *version = strstr(e->symbol, "_v");
	char later[64];
	snprintf(later, sizeof later, "%s_v%d%s", e->name, version ? version[2] - '0' + 1 : 2,
		 e->per_thread ? "_ptsz" : "");
	return forward_find(later) != NULL;
}

enum { PER_THREAD = 2 }; /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

static int found(int code, const char *name, void **function, int version, uint64_t flags)
{
	if (code != SUCCESS || !name || name[0] != 'c' || !function || !*function)
		return code;
	const struct entry *e = entry_of(name, version, flags & PER_THREAD);
	if (e && (*function == forward_find(e->symbol) || !has_later(e)))
		*function = (void *)e->function;
	return code;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return found(forward_cuGetProcAddress(name, function, version, flags), name, function, version, flags);
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	int code = forward_cuGetProcAddress_v2(name, function, version, flags, status);
	return found(code, name, function, version, flags);
}

/* The version that cudaGetDriverEntryPoint means is libcudart's own. */
static int runtime_version(void)
{
	int version = 0;
	return forward_cudaRuntimeGetVersion(&version) == SUCCESS ? version : 12000;
}

EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPoint(name, function, flags, status);
	return found(code, name, function, runtime_version(), flags);
}

EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
					    unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPointByVersion(name, function, version, flags, status);
	return found(code, name, function, (int)version, flags);
}

/* For a program whose default stream is each thread's own; flags may still ask for the legacy one. */
enum { LEGACY = 1 };

EXPORT int cudaGetDriverEntryPoint_ptsz(const char *name, void **function, unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPoint_ptsz(name, function, flags, status);
	return found(code, name, function, runtime_version(), flags & LEGACY ? 0 : PER_THREAD);
}

EXPORT int cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **function, unsigned version,
						 unsigned long long flags, int *status)
{
	int code = forward_cudaGetDriverEntryPointByVersion_ptsz(name, function, version, flags, status);
	return found(code, name, function, (int)version, flags & LEGACY ? 0 : PER_THREAD);
}

/* What dlsym is to answer caller with, who asked for name and would get theirs; NULL: nothing of ours. */
EXPORT void *tms_driver_function(const char *name, void *theirs, const void *caller)
{
	/* We need the driver's own, which passes no gate, but for what the driver's checkpoint would kill us in. */
	if ((const char *)caller >= __ehdr_start && (const char *)caller < etext)
		return gate_polls(name) ? NULL : theirs;
	for (const struct entry *e = entries; e < entries + ENTRIES_COUNT; e++) {
		Dl_info info;
		if (strcmp(e->symbol, name) != 0)
			continue;
		if (!dladdr(theirs, &info) || !info.dli_fname)
			return NULL;
		const char *slash = strrchr(info.dli_fname, '/');
		return strncmp(slash ? slash + 1 : info.dli_fname, "libcuda.so", 10) == 0 ? (void *)e->function : NULL;
	}
	return NULL;
}
