/* forward calls the CUDA functions of the host process, each by a pointer that is looked up at its first call. The shim
 * decides which calls are passed on. */
#ifndef TMS_FORWARD_H
#define TMS_FORWARD_H

#include "table.h"

#include <stddef.h>
#include <stdint.h>

/* Returned when the process has no such CUDA function: cudaErrorSharedObjectSymbolNotFound. */
#define FORWARD_MISSING 302

/* cudaPitchedPtr and cudaExtent. */
struct forward_pitched {
	void *pointer;
	size_t pitch, width, height;
};
struct forward_extent {
	size_t width, height, depth;
};
/* cudaIpcMemHandle_t and CUipcMemHandle, which are passed by value. */
struct forward_ipc {
	char reserved[64];
};

/* Functions that CUDA has a second time, with _ptsz behind the name, for programs compiled with --default-stream
 * per-thread: for those, stream 0 means the thread's own. */
#define FORWARD_STREAM_FUNCTIONS(X, N, suffix) \
	X(cudaMallocAsync##suffix, 3, void **, size_t, void *) \
	X(cudaMallocFromPoolAsync##suffix, 4, void **, size_t, void *, void *) \
	X(cudaFreeAsync##suffix, 2, void *, void *) \
	X(cudaStreamIsCapturing##suffix, 2, void *, int *) \
	N(11020, cuMemAllocAsync##suffix, 3, uintptr_t *, size_t, void *) \
	N(11020, cuMemAllocFromPoolAsync##suffix, 4, uintptr_t *, size_t, void *, void *) \
	N(11020, cuMemFreeAsync##suffix, 2, uintptr_t, void *) \
	X(cuStreamIsCapturing##suffix, 2, void *, int *) \
	X(cudaGetDriverEntryPoint##suffix, 4, const char *, void **, unsigned long long, int *) \
	X(cudaGetDriverEntryPointByVersion##suffix, 5, const char *, void **, unsigned, unsigned long long, int *)

/* X(name, how many parameters, their types). Every function returns cudaError_t or CUresult, passed on as int.
 * N(since, name, ...): this library stands in front of it, and a program that asks CUDA for it by name gets this
 * library's; since is the first CUDA version that has it. Of the functions of table.h every parameter is a word. */
#define FORWARD_FUNCTIONS(X, N) \
	X(cudaMalloc, 2, void **, size_t) \
	X(cudaMallocPitch, 4, void **, size_t *, size_t, size_t) \
	X(cudaMalloc3D, 2, struct forward_pitched *, struct forward_extent) \
	X(cudaFree, 1, void *) \
	X(cudaGetDevice, 1, int *) \
	X(cudaRuntimeGetVersion, 1, int *) \
	X(cudaSetDevice, 1, int) \
	N(10020, cuMemCreate, 4, uint64_t *, size_t, const void *, unsigned long long) \
	N(10020, cuMemRelease, 1, uint64_t) \
	N(10020, cuMemMap, 5, uintptr_t, size_t, size_t, uint64_t, unsigned long long) \
	N(10020, cuMemUnmap, 2, uintptr_t, size_t) \
	N(10020, cuMemSetAccess, 4, uintptr_t, size_t, const void *, size_t) \
	N(10020, cuMemAddressFree, 2, uintptr_t, size_t) \
	N(10020, cuMemExportToShareableHandle, 4, void *, uint64_t, int, unsigned long long) \
	N(10020, cuMemGetAllocationPropertiesFromHandle, 2, void *, uint64_t) \
	N(11070, cuMemGetHandleForAddressRange, 5, void *, uintptr_t, size_t, int, unsigned long long) \
	N(10020, cuMemImportFromShareableHandle, 3, uint64_t *, void *, int) \
	N(12010, cuMulticastBindAddr, 5, uint64_t, size_t, uintptr_t, size_t, unsigned long long) \
	N(13010, cuMulticastBindAddr_v2, 6, uint64_t, int, size_t, uintptr_t, size_t, unsigned long long) \
	N(12010, cuMulticastBindMem, 6, uint64_t, size_t, uint64_t, size_t, size_t, unsigned long long) \
	N(13010, cuMulticastBindMem_v2, 7, uint64_t, int, size_t, uint64_t, size_t, size_t, unsigned long long) \
	N(11000, cuIpcOpenMemHandle_v2, 3, uintptr_t *, struct forward_ipc, unsigned) \
	X(cudaIpcOpenMemHandle, 3, void **, struct forward_ipc, unsigned) \
	N(4010, cuIpcCloseMemHandle, 1, uintptr_t) \
	X(cudaIpcCloseMemHandle, 1, void *) \
	N(3020, cuMemGetAddressRange_v2, 3, uintptr_t *, size_t *, uintptr_t) \
	N(10020, cuMemGetAccess, 3, unsigned long long *, const void *, uintptr_t) \
	N(4000, cuPointerGetAttribute, 3, void *, int, uintptr_t) \
	N(7000, cuPointerGetAttributes, 4, unsigned, const int *, void **, uintptr_t) \
	N(11000, cuMemRetainAllocationHandle, 2, uint64_t *, void *) \
	N(11030, cuGetProcAddress, 4, const char *, void **, int, uint64_t) \
	N(12000, cuGetProcAddress_v2, 5, const char *, void **, int, uint64_t, int *) \
	X(cudaGetLastError, 0, void) \
	X(cudaDeviceEnablePeerAccess, 2, int, unsigned) \
	X(cudaDeviceReset, 0, void) \
	X(cudaPointerGetAttributes, 2, void *, const void *) \
	X(cudaIpcGetMemHandle, 2, void *, void *) \
	N(3020, cuMemAlloc_v2, 2, uintptr_t *, size_t) \
	N(3020, cuMemAllocPitch_v2, 5, uintptr_t *, size_t *, size_t, size_t, unsigned) \
	N(3020, cuMemFree_v2, 1, uintptr_t) \
	N(6000, cuPointerSetAttribute, 3, const void *, int, uintptr_t) \
	X(cuCtxGetDevice, 1, int *) \
	X(cuCtxGetFlags, 1, unsigned *) \
	X(cuCtxSetFlags, 1, unsigned) \
	X(cuCtxGetCurrent, 1, void **) \
	N(3020, cuCtxCreate_v2, 3, void **, unsigned, int) \
	N(11040, cuCtxCreate_v3, 5, void **, void *, int, unsigned, int) \
	N(12050, cuCtxCreate_v4, 4, void **, void *, unsigned, int) \
	N(4000, cuCtxDestroy_v2, 1, void *) \
	N(4000, cuCtxEnablePeerAccess, 2, void *, unsigned) \
	N(11000, cuDevicePrimaryCtxReset_v2, 1, int) \
	X(cuDevicePrimaryCtxRetain, 2, void **, int) \
	N(11000, cuDevicePrimaryCtxRelease_v2, 1, int) \
	X(cuDevicePrimaryCtxGetState, 3, int, unsigned *, int *) \
	X(cuDeviceGetMemPool, 2, void **, int) \
	X(cuDeviceGetDefaultMemPool, 2, void **, int) \
	X(cuDeviceGetCount, 1, int *) \
	N(11020, cuMemPoolCreate, 2, void **, const void *) \
	X(cudaMemPoolCreate, 2, void **, const void *) \
	N(11020, cuMemPoolDestroy, 1, void *) \
	X(cudaMemPoolDestroy, 1, void *) \
	N(11020, cuMemPoolSetAttribute, 3, void *, int, void *) \
	X(cudaMemPoolSetAttribute, 3, void *, int, void *) \
	N(11020, cuMemPoolGetAttribute, 3, void *, int, void *) \
	X(cudaMemPoolGetAttribute, 3, void *, int, void *) \
	N(11020, cuMemPoolTrimTo, 2, void *, size_t) \
	X(cudaMemPoolTrimTo, 2, void *, size_t) \
	X(cuStreamGetCtx, 2, void *, void **) \
	N(4000, cuStreamDestroy_v2, 1, void *) \
	X(cudaStreamDestroy, 1, void *) \
	N(4010, cuIpcGetMemHandle, 2, void *, uintptr_t) \
	FORWARD_OBSTACLES(X, N) \
	FORWARD_CAPTURES(X, N) \
	FORWARD_CAPTURE_ENDS(X, N) \
	FORWARD_STREAM_FUNCTIONS(X, N, ) \
	FORWARD_STREAM_FUNCTIONS(X, N, _ptsz)

/* forward_cudaMalloc(pointer, size) and so on call the host's own function. The pointers start at a stub that looks the
 * function up; a lookup that finds nothing is made again at the next call: libcudart may be loaded in between. */
#define X(name, count, ...) extern int (*_Atomic forward_##name)(__VA_ARGS__) __attribute__((visibility("hidden")));
#define N(since, ...) X(__VA_ARGS__)
FORWARD_FUNCTIONS(X, N)
#undef X
#undef N

/* A function that the next library in line defines; or NULL. */
void *forward_next(const char *name);
/* The same, or failing that one of any loaded libcudart (cuda...) or libcuda (cu...). */
void *forward_find(const char *name);

#endif
