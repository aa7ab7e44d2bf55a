/* forward calls the CUDA functions of the host process, each by a pointer that is looked up at its first call. Which
 * calls are passed on is left to the shim. */
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

/* Functions that CUDA has once more, with _ptsz behind the name, for programs compiled with
 * --default-stream per-thread: there the stream 0 means the thread's own. */
#define FORWARD_STREAM_FUNCTIONS(X, suffix)                                                        \
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
	X(cuMemAllocAsync##suffix, (uintptr_t *pointer, size_t size, void *stream),                \
	  (pointer, size, stream))                                                                 \
	X(cuMemAllocFromPoolAsync##suffix,                                                         \
	  (uintptr_t *pointer, size_t size, void *pool, void *stream),                             \
	  (pointer, size, pool, stream))                                                           \
	X(cuMemFreeAsync##suffix, (uintptr_t pointer, void *stream), (pointer, stream))            \
	X(cuStreamIsCapturing##suffix, (void *stream, int *status), (stream, status))              \
	X(cuStreamBeginCapture_v2##suffix, (void *stream, int mode), (stream, mode))               \
	X(cuStreamBeginCaptureToGraph##suffix,                                                     \
	  (void *stream, void *graph, const void *dependencies, const void *edges, size_t count,   \
	   int mode),                                                                              \
	  (stream, graph, dependencies, edges, count, mode))                                       \
	X(cuStreamEndCapture##suffix, (void *stream, void **graph), (stream, graph))               \
	X(cudaGetDriverEntryPoint##suffix,                                                         \
	  (const char *name, void **function, unsigned long long flags, int *status),              \
	  (name, function, flags, status))                                                         \
	X(cudaGetDriverEntryPointByVersion##suffix,                                                \
	  (const char *name, void **function, unsigned version, unsigned long long flags, int *status), \
	  (name, function, version, flags, status))

/* name, parameters, arguments. Every function returns cudaError_t or CUresult, passed on as int. */
#define FORWARD_FUNCTIONS(X)                                                                       \
	X(cudaMalloc, (void **pointer, size_t size), (pointer, size))                              \
	X(cudaMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t height),           \
	  (pointer, pitch, width, height))                                                         \
	X(cudaMalloc3D, (struct forward_pitched *pitched, struct forward_extent extent),           \
	  (pitched, extent))                                                                       \
	X(cudaFree, (void *pointer), (pointer))                                                    \
	X(cudaGetDevice, (int *device), (device))                                                  \
	X(cudaRuntimeGetVersion, (int *version), (version))                                        \
	X(cudaSetDevice, (int device), (device))                                                   \
	X(cuMemCreate, (uint64_t *handle, size_t size, const void *prop, unsigned long long flags), \
	  (handle, size, prop, flags))                                                             \
	X(cuMemRelease, (uint64_t handle), (handle))                                               \
	X(cuMemMap,                                                                                \
	  (uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags), \
	  (address, size, offset, handle, flags))                                                  \
	X(cuMemUnmap, (uintptr_t address, size_t size), (address, size))                           \
	X(cuMemSetAccess, (uintptr_t address, size_t size, const void *access, size_t count),      \
	  (address, size, access, count))                                                          \
	X(cuMemAddressFree, (uintptr_t address, size_t size), (address, size))                     \
	X(cuMemExportToShareableHandle,                                                            \
	  (void *shareable, uint64_t handle, int type, unsigned long long flags),                  \
	  (shareable, handle, type, flags))                                                        \
	X(cuMemGetAllocationPropertiesFromHandle, (void *prop, uint64_t handle), (prop, handle))   \
	X(cuMemImportFromShareableHandle, (uint64_t *handle, void *shareable, int type),           \
	  (handle, shareable, type))                                                               \
	X(cuMemAllocManaged, (uintptr_t *pointer, size_t size, unsigned flags), (pointer, size, flags)) \
	X(cuMulticastCreate, (uint64_t *handle, const void *properties), (handle, properties)) \
	X(cuMulticastBindAddr,                                                                     \
	  (uint64_t object, size_t offset, uintptr_t address, size_t size, unsigned long long flags), \
	  (object, offset, address, size, flags))                                                  \
	X(cuMulticastBindAddr_v2,                                                                  \
	  (uint64_t object, int device, size_t offset, uintptr_t address, size_t size, unsigned long long flags), \
	  (object, device, offset, address, size, flags))                                          \
	X(cuMulticastBindMem,                                                                      \
	  (uint64_t object, size_t offset, uint64_t memory, size_t memory_offset, size_t size,     \
	   unsigned long long flags),                                                              \
	  (object, offset, memory, memory_offset, size, flags))                                    \
	X(cuMulticastBindMem_v2,                                                                   \
	  (uint64_t object, int device, size_t offset, uint64_t memory, size_t memory_offset, size_t size, \
	   unsigned long long flags),                                                              \
	  (object, device, offset, memory, memory_offset, size, flags))                            \
	X(cudaMallocManaged, (void **pointer, size_t size, unsigned flags), (pointer, size, flags)) \
	X(cuIpcOpenMemHandle_v2, (uintptr_t *pointer, struct forward_ipc handle, unsigned flags),   \
	  (pointer, handle, flags))                                                                \
	X(cudaIpcOpenMemHandle, (void **pointer, struct forward_ipc handle, unsigned flags),       \
	  (pointer, handle, flags))                                                                \
	X(cuIpcCloseMemHandle, (uintptr_t pointer), (pointer))                                     \
	X(cudaIpcCloseMemHandle, (void *pointer), (pointer))                                       \
	X(cuMemGetAddressRange_v2, (uintptr_t *base, size_t *size, uintptr_t address),             \
	  (base, size, address))                                                                   \
	X(cuPointerGetAttribute, (void *data, int attribute, uintptr_t address), (data, attribute, address)) \
	X(cuPointerGetAttributes,                                                                  \
	  (unsigned count, const int *attributes, void **data, uintptr_t address),                 \
	  (count, attributes, data, address))                                                      \
	X(cuMemRetainAllocationHandle, (uint64_t *handle, void *address), (handle, address))       \
	X(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags),      \
	  (name, function, version, flags))                                                        \
	X(cuGetProcAddress_v2,                                                                     \
	  (const char *name, void **function, int version, uint64_t flags, int *status),           \
	  (name, function, version, flags, status))                                                \
	X(cudaGetLastError, (void), ())                                                            \
	X(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), (peer, flags))                   \
	X(cudaDeviceReset, (void), ())                                                             \
	X(cudaPointerGetAttributes, (void *attributes, const void *pointer), (attributes, pointer)) \
	X(cudaIpcGetMemHandle, (void *handle, void *pointer), (handle, pointer))                   \
	X(cuMemAlloc_v2, (uintptr_t *pointer, size_t size), (pointer, size))                       \
	X(cuMemAllocPitch_v2,                                                                      \
	  (uintptr_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element),      \
	  (pointer, pitch, width, height, element))                                                \
	X(cuMemFree_v2, (uintptr_t pointer), (pointer))                                            \
	X(cuCtxGetDevice, (int *device), (device))                                                 \
	X(cuCtxGetCurrent, (void **context), (context))                                            \
	X(cuCtxCreate_v2, (void **context, unsigned flags, int device), (context, flags, device))  \
	X(cuCtxCreate_v3, (void **context, void *affinities, int count, unsigned flags, int device), \
	  (context, affinities, count, flags, device))                                             \
	X(cuCtxCreate_v4, (void **context, void *parameters, unsigned flags, int device),          \
	  (context, parameters, flags, device))                                                    \
	X(cuCtxDestroy_v2, (void *context), (context))                                             \
	X(cuCtxEnablePeerAccess, (void *context, unsigned flags), (context, flags))                \
	X(cuDevicePrimaryCtxReset_v2, (int device), (device))                                      \
	X(cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))               \
	X(cuDevicePrimaryCtxRelease_v2, (int device), (device))                                    \
	X(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active),                  \
	  (device, flags, active))                                                                 \
	X(cuDeviceGetMemPool, (void **pool, int device), (pool, device))                           \
	X(cuMemPoolDestroy, (void *pool), (pool))                                                  \
	X(cudaMemPoolDestroy, (void *pool), (pool))                                                \
	X(cuMemPoolExportToShareableHandle, (void *shareable, void *pool, int type, unsigned long long flags), \
	  (shareable, pool, type, flags))                                                          \
	X(cuMemPoolImportFromShareableHandle, (void **pool, void *shareable, int type, unsigned long long flags), \
	  (pool, shareable, type, flags))                                                          \
	X(cudaMemPoolExportToShareableHandle, (void *shareable, void *pool, int type, unsigned flags), \
	  (shareable, pool, type, flags))                                                          \
	X(cudaMemPoolImportFromShareableHandle, (void **pool, void *shareable, int type, unsigned flags), \
	  (pool, shareable, type, flags))                                                          \
	X(cuStreamGetCtx, (void *stream, void **context), (stream, context))                       \
	X(cuStreamDestroy_v2, (void *stream), (stream))                                            \
	X(cudaStreamDestroy, (void *stream), (stream))                                             \
	X(cuIpcGetMemHandle, (void *handle, uintptr_t pointer), (handle, pointer))                 \
	FORWARD_STREAM_FUNCTIONS(X, )                                                              \
	FORWARD_STREAM_FUNCTIONS(X, _ptsz)

/* forward_cudaMalloc(pointer, size) and so on call the host's own function. The pointers start at
 * a stub that looks the function up; a lookup that finds nothing is made again at the next call,
 * because libcudart may still be loaded. */
#define X(name, parameters, arguments)                                                             \
	extern int(*_Atomic forward_##name) parameters __attribute__((visibility("hidden")));
FORWARD_FUNCTIONS(X)
#undef X

/* A function that the next library in line defines; or NULL. */
void *forward_next(const char *name);
/* The same, or failing that one of any loaded libcudart (cuda...) or libcuda (cu...). */
void *forward_find(const char *name);

#endif
