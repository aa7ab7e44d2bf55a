// The simulated part of the CUDA runtime's ABI, majors 12 and 13, with the driver's handles. It has the
// numbers and layouts of driver_types.h and cuda_runtime_api.h.
#ifndef CUDASIM_RUNTIME_TYPES_H
#define CUDASIM_RUNTIME_TYPES_H

#include <stddef.h>

#include "../driver/abi/types.h"

// Errors of the runtime alone.
#define RUNTIME_ERRORS(X) \
	X(21, , cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") \
	X(35, , cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")

typedef enum {
#define X(code, driver, runtime, text) runtime = code,
	ERRORS(X) RUNTIME_ERRORS(X)
#undef X
} cudaError_t;

typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
typedef CUgraph cudaGraph_t;
typedef CUgraphExec cudaGraphExec_t;
typedef CUgraphNode cudaGraphNode_t;
typedef CUgraphEdgeData cudaGraphEdgeData;
typedef CUmemoryPool cudaMemPool_t;
typedef CUhostFn cudaHostFn_t;

enum cudaMemcpyKind {
	cudaMemcpyHostToHost = 0,
	cudaMemcpyHostToDevice = 1,
	cudaMemcpyDeviceToHost = 2,
	cudaMemcpyDeviceToDevice = 3,
	cudaMemcpyDefault = 4,
};

enum cudaMemoryType {
	cudaMemoryTypeUnregistered = 0,
	cudaMemoryTypeHost = 1,
	cudaMemoryTypeDevice = 2,
};

struct cudaPointerAttributes {
	enum cudaMemoryType type;
	int device;
	void *devicePointer;
	void *hostPointer;
#if CUDART_MAJOR >= 13
	long reserved[8];
#endif
};

struct cudaPitchedPtr {
	void *ptr;
	size_t pitch, xsize, ysize;
};

struct cudaExtent {
	size_t width, height, depth;
};

typedef CUipcMemHandle cudaIpcMemHandle_t;

// The fields that device.c fills have their names; the others are arrays between them.
struct cudaDeviceProp {
	char name[256];
	char uuid[16];
	char luid[12];
	size_t totalGlobalMem, sharedMemPerBlock;
	int regsPerBlock, warpSize;
	size_t memPitch;
	int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
#if CUDART_MAJOR < 13
	int clockRate;
#endif
	size_t totalConstMem;
	int major, minor;
	size_t textureAlignment, texturePitchAlignment;
#if CUDART_MAJOR < 13
	int deviceOverlap;
#endif
	int multiProcessorCount;
	int modes[CUDART_MAJOR < 13 ? 2 : 1];
	int canMapHostMemory;
	int texturesAndSurfaces[CUDART_MAJOR < 13 ? 41 : 39];
	size_t surfaceAlignment;
	int concurrentKernels, ECCEnabled, pciBusID, pciOthers[3], asyncEngineCount, unifiedAddressing;
#if CUDART_MAJOR < 13
	int memoryClockRate;
#endif
	int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;
	int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
	size_t sharedMemPerMultiprocessor;
	int regsPerMultiprocessor;
	int boardAndPages[CUDART_MAJOR < 13 ? 7 : 6];
	int computePreemptionSupported, canUseHostPointerForRegisteredMem, cooperativeLaunch;
#if CUDART_MAJOR < 13
	int cooperativeMultiDeviceLaunch;
#endif
	size_t sharedMemPerBlockOptin;
	int pageTables[2], maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
	size_t reservedSharedMemPerBlock;
	int hostRegisterSupported; // from here on: not in the struct of cudaGetDeviceProperties before 12
	int sharing[3], memoryPoolsSupported, reserved[71];
};

_Static_assert(sizeof(struct cudaPointerAttributes) == (CUDART_MAJOR >= 13 ? 88 : 24), "ABI");
_Static_assert(sizeof(struct cudaDeviceProp) == (CUDART_MAJOR >= 13 ? 1008 : 1032), "ABI");
_Static_assert(offsetof(struct cudaDeviceProp, hostRegisterSupported) == (CUDART_MAJOR >= 13 ? 704 : 728),
	       "ABI");

#endif
