/* forward calls the CUDA functions of the host process, each by a pointer that is looked up at its first call. The shim
 * decides which calls are passed on. */
#ifndef TMS_FORWARD_H
#define TMS_FORWARD_H

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
#define FORWARD_STREAM_FUNCTIONS(X, N, suffix)                                                     \
	X(cudaMallocAsync##suffix, (void **pointer, size_t size, void *stream),                    \
	  (pointer, size, stream))                                                                 \
	X(cudaMallocFromPoolAsync##suffix,                                                         \
	  (void **pointer, size_t size, void *pool, void *stream), (pointer, size, pool, stream))  \
	X(cudaFreeAsync##suffix, (void *pointer, void *stream), (pointer, stream))                 \
	X(cudaStreamIsCapturing##suffix, (void *stream, int *status), (stream, status))            \
	X(cudaStreamBeginCapture##suffix, (void *stream, int mode), (stream, mode))                \
	X(cudaStreamBeginCaptureToGraph##suffix,                                                   \
	  (void *stream, void *graph, const void *dependencies, const void *edges, size_t count,   \
	   int mode),                                                                              \
	  (stream, graph, dependencies, edges, count, mode))                                       \
	X(cudaStreamEndCapture##suffix, (void *stream, void **graph), (stream, graph))             \
	N(11020, cuMemAllocAsync##suffix, (uintptr_t *pointer, size_t size, void *stream),         \
	  (pointer, size, stream))                                                                 \
	N(11020, cuMemAllocFromPoolAsync##suffix,                                                  \
	  (uintptr_t *pointer, size_t size, void *pool, void *stream),                             \
	  (pointer, size, pool, stream))                                                           \
	N(11020, cuMemFreeAsync##suffix, (uintptr_t pointer, void *stream), (pointer, stream))     \
	X(cuStreamIsCapturing##suffix, (void *stream, int *status), (stream, status))              \
	N(10010, cuStreamBeginCapture_v2##suffix, (void *stream, int mode), (stream, mode))        \
	N(12030, cuStreamBeginCaptureToGraph##suffix,                                              \
	  (void *stream, void *graph, const void *dependencies, const void *edges, size_t count,   \
	   int mode),                                                                              \
	  (stream, graph, dependencies, edges, count, mode))                                       \
	N(10000, cuStreamEndCapture##suffix, (void *stream, void **graph), (stream, graph))        \
	X(cudaGetDriverEntryPoint##suffix,                                                         \
	  (const char *name, void **function, unsigned long long flags, int *status),              \
	  (name, function, flags, status))                                                         \
	X(cudaGetDriverEntryPointByVersion##suffix,                                                \
	  (const char *name, void **function, unsigned version, unsigned long long flags, int *status), \
	  (name, function, version, flags, status))

/* X(name, parameters, arguments). Every function returns cudaError_t or CUresult, passed on as int.
 * N(since, name, parameters, arguments): this library stands in front of it, and a program that asks CUDA for it by
 * name gets this library's; since is the first CUDA version that has it. */
#define FORWARD_FUNCTIONS(X, N)                                                                    \
	X(cudaMalloc, (void **pointer, size_t size), (pointer, size))                              \
	X(cudaMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t height),           \
	  (pointer, pitch, width, height))                                                         \
	X(cudaMalloc3D, (struct forward_pitched *pitched, struct forward_extent extent),           \
	  (pitched, extent))                                                                       \
	X(cudaFree, (void *pointer), (pointer))                                                    \
	X(cudaGetDevice, (int *device), (device))                                                  \
	X(cudaRuntimeGetVersion, (int *version), (version))                                        \
	X(cudaSetDevice, (int device), (device))                                                   \
	N(10020, cuMemCreate, (uint64_t *handle, size_t size, const void *prop, unsigned long long flags), \
	  (handle, size, prop, flags))                                                             \
	N(10020, cuMemRelease, (uint64_t handle), (handle))                                        \
	N(10020, cuMemMap,                                                                         \
	  (uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags), \
	  (address, size, offset, handle, flags))                                                  \
	N(10020, cuMemUnmap, (uintptr_t address, size_t size), (address, size))                    \
	N(10020, cuMemSetAccess, (uintptr_t address, size_t size, const void *access, size_t count), \
	  (address, size, access, count))                                                          \
	N(10020, cuMemAddressFree, (uintptr_t address, size_t size), (address, size))              \
	N(10020, cuMemExportToShareableHandle,                                                     \
	  (void *shareable, uint64_t handle, int type, unsigned long long flags),                  \
	  (shareable, handle, type, flags))                                                        \
	N(10020, cuMemGetAllocationPropertiesFromHandle, (void *prop, uint64_t handle), (prop, handle)) \
	N(10020, cuMemImportFromShareableHandle, (uint64_t *handle, void *shareable, int type),    \
	  (handle, shareable, type))                                                               \
	N(6000, cuMemAllocManaged, (uintptr_t *pointer, size_t size, unsigned flags), (pointer, size, flags)) \
	N(12010, cuMulticastCreate, (uint64_t *handle, const void *properties), (handle, properties)) \
	N(12010, cuMulticastBindAddr,                                                              \
	  (uint64_t object, size_t offset, uintptr_t address, size_t size, unsigned long long flags), \
	  (object, offset, address, size, flags))                                                  \
	N(13010, cuMulticastBindAddr_v2,                                                           \
	  (uint64_t object, int device, size_t offset, uintptr_t address, size_t size, unsigned long long flags), \
	  (object, device, offset, address, size, flags))                                          \
	N(12010, cuMulticastBindMem,                                                               \
	  (uint64_t object, size_t offset, uint64_t memory, size_t memory_offset, size_t size,     \
	   unsigned long long flags),                                                              \
	  (object, offset, memory, memory_offset, size, flags))                                    \
	N(13010, cuMulticastBindMem_v2,                                                            \
	  (uint64_t object, int device, size_t offset, uint64_t memory, size_t memory_offset, size_t size, \
	   unsigned long long flags),                                                              \
	  (object, device, offset, memory, memory_offset, size, flags))                            \
	X(cudaMallocManaged, (void **pointer, size_t size, unsigned flags), (pointer, size, flags)) \
	N(11000, cuIpcOpenMemHandle_v2, (uintptr_t *pointer, struct forward_ipc handle, unsigned flags), \
	  (pointer, handle, flags))                                                                \
	X(cudaIpcOpenMemHandle, (void **pointer, struct forward_ipc handle, unsigned flags),       \
	  (pointer, handle, flags))                                                                \
	N(4010, cuIpcCloseMemHandle, (uintptr_t pointer), (pointer))                               \
	X(cudaIpcCloseMemHandle, (void *pointer), (pointer))                                       \
	N(3020, cuMemGetAddressRange_v2, (uintptr_t *base, size_t *size, uintptr_t address),       \
	  (base, size, address))                                                                   \
	N(4000, cuPointerGetAttribute, (void *data, int attribute, uintptr_t address), (data, attribute, address)) \
	N(7000, cuPointerGetAttributes,                                                            \
	  (unsigned count, const int *attributes, void **data, uintptr_t address),                 \
	  (count, attributes, data, address))                                                      \
	N(11000, cuMemRetainAllocationHandle, (uint64_t *handle, void *address), (handle, address)) \
	N(11030, cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags), \
	  (name, function, version, flags))                                                        \
	N(12000, cuGetProcAddress_v2,                                                              \
	  (const char *name, void **function, int version, uint64_t flags, int *status),           \
	  (name, function, version, flags, status))                                                \
	X(cudaGetLastError, (void), ())                                                            \
	X(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), (peer, flags))                   \
	X(cudaDeviceReset, (void), ())                                                             \
	X(cudaPointerGetAttributes, (void *attributes, const void *pointer), (attributes, pointer)) \
	X(cudaIpcGetMemHandle, (void *handle, void *pointer), (handle, pointer))                   \
	N(3020, cuMemAlloc_v2, (uintptr_t *pointer, size_t size), (pointer, size))                 \
	N(3020, cuMemAllocPitch_v2,                                                                \
	  (uintptr_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element),      \
	  (pointer, pitch, width, height, element))                                                \
	N(3020, cuMemFree_v2, (uintptr_t pointer), (pointer))                                      \
	X(cuCtxGetDevice, (int *device), (device))                                                 \
	X(cuCtxGetCurrent, (void **context), (context))                                            \
	N(3020, cuCtxCreate_v2, (void **context, unsigned flags, int device), (context, flags, device)) \
	N(11040, cuCtxCreate_v3, (void **context, void *affinities, int count, unsigned flags, int device), \
	  (context, affinities, count, flags, device))                                             \
	N(12050, cuCtxCreate_v4, (void **context, void *parameters, unsigned flags, int device),   \
	  (context, parameters, flags, device))                                                    \
	N(4000, cuCtxDestroy_v2, (void *context), (context))                                       \
	N(4000, cuCtxEnablePeerAccess, (void *context, unsigned flags), (context, flags))          \
	N(11000, cuDevicePrimaryCtxReset_v2, (int device), (device))                               \
	X(cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))               \
	N(11000, cuDevicePrimaryCtxRelease_v2, (int device), (device))                             \
	X(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active),                  \
	  (device, flags, active))                                                                 \
	X(cuDeviceGetMemPool, (void **pool, int device), (pool, device))                           \
	N(11020, cuMemPoolDestroy, (void *pool), (pool))                                           \
	X(cudaMemPoolDestroy, (void *pool), (pool))                                                \
	N(11020, cuMemPoolExportToShareableHandle, (void *shareable, void *pool, int type, unsigned long long flags), \
	  (shareable, pool, type, flags))                                                          \
	N(11020, cuMemPoolImportFromShareableHandle, (void **pool, void *shareable, int type, unsigned long long flags), \
	  (pool, shareable, type, flags))                                                          \
	X(cudaMemPoolExportToShareableHandle, (void *shareable, void *pool, int type, unsigned flags), \
	  (shareable, pool, type, flags))                                                          \
	X(cudaMemPoolImportFromShareableHandle, (void **pool, void *shareable, int type, unsigned flags), \
	  (pool, shareable, type, flags))                                                          \
	X(cuStreamGetCtx, (void *stream, void **context), (stream, context))                       \
	N(4000, cuStreamDestroy_v2, (void *stream), (stream))                                      \
	X(cudaStreamDestroy, (void *stream), (stream))                                             \
	N(4010, cuIpcGetMemHandle, (void *handle, uintptr_t pointer), (handle, pointer))           \
	FORWARD_STREAM_FUNCTIONS(X, N, )                                                           \
	FORWARD_STREAM_FUNCTIONS(X, N, _ptsz)

/* forward_cudaMalloc(pointer, size) and so on call the host's own function. The pointers start at
 * a stub that looks the function up; a lookup that finds nothing is made again at the next call, because libcudart may
 * be loaded in between. */
#define X(name, parameters, arguments)                                                             \
	extern int(*_Atomic forward_##name) parameters __attribute__((visibility("hidden")));
#define N(since, ...) X(__VA_ARGS__)
FORWARD_FUNCTIONS(X, N)
#undef X
#undef N

/* A function that the next library in line defines; or NULL. */
void *forward_next(const char *name);
/* The same, or failing that one of any loaded libcudart (cuda...) or libcuda (cu...). */
void *forward_find(const char *name);

#endif
