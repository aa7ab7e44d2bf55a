/* forward calls the CUDA functions of the host process, each by a pointer that is looked up at its first call. The shim
 * decides which calls are passed on. */
#ifndef TMS_FORWARD_H
#define TMS_FORWARD_H

#include "table.h"
#include "words.h"

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
#define FORWARD_RUNTIME_STREAM(X, suffix) \
	X(cudaMallocAsync##suffix, 3, void **, size_t, void *) \
	X(cudaMallocFromPoolAsync##suffix, 4, void **, size_t, void *, void *) \
	X(cudaFreeAsync##suffix, 2, void *, void *) \
	X(cudaGetDriverEntryPoint##suffix, 4, const char *, void **, unsigned long long, int *) \
	X(cudaGetDriverEntryPointByVersion##suffix, 5, const char *, void **, unsigned, unsigned long long, int *)
#define FORWARD_DRIVER_STREAM(X, N, suffix) \
	N(11020, cuMemAllocAsync##suffix, 3, uintptr_t *, size_t, void *) \
	N(11020, cuMemAllocFromPoolAsync##suffix, 4, uintptr_t *, size_t, void *, void *) \
	N(11020, cuMemFreeAsync##suffix, 2, uintptr_t, void *) \
	X(cuStreamIsCapturing##suffix, 2, void *, int *)

/* X(name, how many parameters, their types). Every function returns cudaError_t or CUresult, passed on as int. In
 * table.h, where every parameter is a word, X has the runtime's functions and N the driver's. A row of a function
 * that copies also has an expression for the addresses in the arguments (copies.c). TWICE has a function that CUDA has
 * with _ptsz or _ptds behind the name, too.
 *
 * The runtime's functions that this library stands in front of. */
#define FORWARD_NONE(...)
#define FORWARD_RUNTIME_COPY(X, since, name, count, found) X(name, count, TYPES_##count)
#define FORWARD_DRIVER_COPY(N, since, name, count, found) N(since, name, count, TYPES_##count)
#define FORWARD_COPIES(X, N) COPIES(FORWARD_RUNTIME_COPY, FORWARD_DRIVER_COPY, X, N)
#define FORWARD_RUNTIME(X) \
	X(cudaMemGetInfo, 2, size_t *, size_t *) \
	X(cudaGetDeviceProperties, 2, void *, int) \
	X(cudaGetDeviceProperties_v2, 2, void *, int) \
	X(cudaMalloc, 2, void **, size_t) \
	X(cudaMallocPitch, 4, void **, size_t *, size_t, size_t) \
	X(cudaMalloc3D, 2, struct forward_pitched *, struct forward_extent) \
	X(cudaFree, 1, void *) \
	X(cudaSetDevice, 1, int) \
	X(cudaIpcOpenMemHandle, 3, void **, struct forward_ipc, unsigned) \
	X(cudaIpcCloseMemHandle, 1, void *) \
	X(cudaGetLastError, 0, void) \
	X(cudaPeekAtLastError, 0, void) \
	X(cudaDeviceEnablePeerAccess, 2, int, unsigned) \
	X(cudaDeviceReset, 0, void) \
	X(cudaPointerGetAttributes, 2, void *, const void *) \
	X(cudaIpcGetMemHandle, 2, void *, void *) \
	X(cudaMemPoolCreate, 2, void **, const void *) \
	X(cudaMemPoolDestroy, 1, void *) \
	X(cudaMemPoolSetAttribute, 3, void *, int, void *) \
	X(cudaMemPoolGetAttribute, 3, void *, int, void *) \
	X(cudaMemPoolTrimTo, 2, void *, size_t) \
	X(cudaStreamDestroy, 1, void *) \
	FORWARD_OBSTACLES(X, FORWARD_NONE) \
	FORWARD_CAPTURES(X, FORWARD_NONE) \
	FORWARD_CAPTURE_ENDS(X, FORWARD_NONE) \
	FORWARD_COPIES(X, FORWARD_NONE) \
	FORWARD_RUNTIME_STREAM(X, ) \
	FORWARD_RUNTIME_STREAM(X, _ptsz)

/* Functions that only libtms.so itself calls. */
#define FORWARD_RUNTIME_ASKED(X) \
	X(cudaGetDevice, 1, int *) \
	X(cudaRuntimeGetVersion, 1, int *) \
	X(cudaStreamIsCapturing, 2, void *, int *) \
	X(cudaStreamIsCapturing_ptsz, 2, void *, int *)

/* The driver's. N(since, name, ...): this library stands in front of it, and a program that asks CUDA for it by name
 * gets this library's; since is the first CUDA version that has it. */
#define FORWARD_DRIVER(X, N) \
	X(cuCheckpointProcessGetState, 2, int, int *) \
	N(2000, cuInit, 1, unsigned) \
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
	N(4010, cuIpcCloseMemHandle, 1, uintptr_t) \
	N(3020, cuMemGetAddressRange_v2, 3, uintptr_t *, size_t *, uintptr_t) \
	N(10020, cuMemGetAccess, 3, unsigned long long *, const void *, uintptr_t) \
	N(4000, cuPointerGetAttribute, 3, void *, int, uintptr_t) \
	N(7000, cuPointerGetAttributes, 4, unsigned, const int *, void **, uintptr_t) \
	N(11000, cuMemRetainAllocationHandle, 2, uint64_t *, void *) \
	N(11030, cuGetProcAddress, 4, const char *, void **, int, uint64_t) \
	N(12000, cuGetProcAddress_v2, 5, const char *, void **, int, uint64_t, int *) \
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
	X(cuDeviceGetAttribute, 3, int *, int, int) \
	N(3020, cuMemGetInfo_v2, 2, size_t *, size_t *) \
	N(3020, cuDeviceTotalMem_v2, 2, size_t *, int) \
	N(11020, cuMemPoolCreate, 2, void **, const void *) \
	N(11020, cuMemPoolDestroy, 1, void *) \
	N(11020, cuMemPoolSetAttribute, 3, void *, int, void *) \
	N(11020, cuMemPoolGetAttribute, 3, void *, int, void *) \
	N(11020, cuMemPoolTrimTo, 2, void *, size_t) \
	X(cuStreamGetCtx, 2, void *, void **) \
	X(cuStreamGetId, 2, void *, unsigned long long *) \
	X(cuEventRecord, 2, void *, void *) \
	N(4000, cuStreamDestroy_v2, 1, void *) \
	N(4010, cuIpcGetMemHandle, 2, void *, uintptr_t) \
	FORWARD_OBSTACLES(FORWARD_NONE, N) \
	FORWARD_CAPTURES(FORWARD_NONE, N) \
	FORWARD_CAPTURE_ENDS(FORWARD_NONE, N) \
	FORWARD_COPIES(FORWARD_NONE, N) \
	FORWARD_DRIVER_STREAM(X, N, ) \
	FORWARD_DRIVER_STREAM(X, N, _ptsz)

#define FORWARD_FUNCTIONS(X, N) \
	FORWARD_RUNTIME(X) \
	FORWARD_RUNTIME_ASKED(X) \
	FORWARD_DRIVER(X, N)

/* forward_cudaMalloc(pointer, size) and so on call the host's own function. The pointers start at a stub that looks all
 * functions up, because the loader's lock may not be free at a later call; while no library has them, each call looks
 * again: libcudart may be loaded in between. */
#define X(name, count, ...) extern int (*_Atomic forward_##name)(__VA_ARGS__) __attribute__((visibility("hidden")));
#define N(since, ...) X(__VA_ARGS__)
FORWARD_FUNCTIONS(X, N)
#undef X
#undef N

/* Looks all functions up that can be found now. */
void forward_resolve(void);
/* Tells that this process is a child of fork: libraries.h. */
void forward_in_child(void);
/* Runs once, at the first call of CUDA, while the loader's lock is free. It is set at load. */
extern void (*forward_at_first_call)(void) __attribute__((visibility("hidden")));
/* Returns what dlsym answers for the loaded libcuda, without the loader's lock. Returns NULL if the library is not
 * loaded, or has no such function, or dlsym may be another library's. For one thread at a time. */
void *forward_in_driver(const char *name);

/* The libraries of a process may be bound to several majors of libcudart, whose structures and states differ. The
 * loader binds each to the version that it names: this library has its functions in the newest version, which is also
 * that of callers that name none, and in these (older.c). */
enum forward_major { FORWARD_NEWEST, FORWARD_12, FORWARD_11, FORWARD_MAJORS };
/* The major that this thread's call of the runtime came by, and for an older one, who called. */
struct forward_caller {
	enum forward_major major;
	const void *address;
};
extern __thread struct forward_caller forward_caller __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* Whether a caller of an older major has been seen. It is set before the first such call. */
extern _Atomic _Bool forward_has_older __attribute__((visibility("hidden")));
void forward_see_older(void);
/* Another copy of the same major of libcudart than calls go to: auditwheel renames the copy that it puts into a wheel.
 * Calls that do not come through this library, such as the launch of a kernel, fail there, and leave its last error. A
 * reset of the device has to reach this copy, which has loaded the caller's kernels into the context that ends. */
struct forward_copy {
	int (*get)(void), (*peek)(void), (*reset)(void);
};
/* Returns the copy to which the caller's library is bound, or NULL if calls go to that copy already. */
const struct forward_copy *forward_copy_of(const void *caller);
/* The functions of each major, for a pass-through without regard to forward_caller. */
#define X(name, count, ...) \
	extern int (*_Atomic forward_by_major_##name[FORWARD_MAJORS])(__VA_ARGS__) __attribute__((visibility("hidden")));
FORWARD_RUNTIME(X)
FORWARD_RUNTIME_ASKED(X)
#undef X

/* A function that the next library in line defines; or NULL. */
void *forward_next(const char *name);
/* As forward_next. Without one, it is the function of any loaded libcudart (cuda...), libcuda (cu...) or libnvidia-ml
 * (nvml...). */
void *forward_find(const char *name);

#endif
