// Devices: choosing, describing, synchronizing, peers.
#include <stdbool.h>
#include <string.h>

#include "runtime.h"

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
	if (!version)
		return result(cudaErrorInvalidValue);
	*version = 0; // no driver
	return driver_load() == cudaSuccess ? result(cu.cuDriverGetVersion(version)) : cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
	if (!version)
		return result(cudaErrorInvalidValue);
	*version = RUNTIME_VERSION;
	return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
	if (!count)
		return result(cudaErrorInvalidValue);
	*count = 0;
	cudaError_t error = driver_start();
	return result(error ? (int)error : (int)cu.cuDeviceGetCount(count));
}

static int current(int *device)
{
	if (!device)
		return cudaErrorInvalidValue;
	if (cu.cuCtxGetDevice(device) != CUDA_SUCCESS)
		*device = chosen;
	return cudaSuccess;
}

static int reset(void)
{
	int device;
	current(&device);
	device_forget(device);
	return cu.cuDevicePrimaryCtxReset_v2(device);
}

static int change_peer(int peer, bool enable, unsigned flags)
{
	CUcontext context;
	cudaError_t error = device_primary(peer, &context);
	if (error)
		return error;
	return enable ? cu.cuCtxEnablePeerAccess(context, flags) : cu.cuCtxDisablePeerAccess(context);
}

PASS(driver_start, cudaGetDevice, (int *device), current(device))
PASS(driver_start, cudaSetDevice, (int device), device_bind(device))
PASS(ready, cudaDeviceSynchronize, (void), cu.cuCtxSynchronize())
PASS(driver_start, cudaDeviceReset, (void), reset())
PASS(driver_start, cudaDeviceGetAttribute, (int *value, int attribute, int device),
     cu.cuDeviceGetAttribute(value, attribute, device))
PASS(driver_start, cudaDeviceCanAccessPeer, (int *can, int device, int peer),
     cu.cuDeviceCanAccessPeer(can, device, peer))
PASS(driver_start, cudaDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer),
     cu.cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)attribute, device, peer))
PASS(ready, cudaDeviceEnablePeerAccess, (int peer, unsigned flags), change_peer(peer, true, flags))
PASS(ready, cudaDeviceDisablePeerAccess, (int peer), change_peer(peer, false, 0))

static int attribute(int number, int device)
{
	int value = 0;
	cu.cuDeviceGetAttribute(&value, number, device);
	return value;
}

static int fill(struct cudaDeviceProp *prop, int device)
{
	memset(prop, 0, sizeof *prop);
	int error = cu.cuDeviceTotalMem_v2(&prop->totalGlobalMem, device);
	if (error)
		return error;
	cu.cuDeviceGetName(prop->name, sizeof prop->name, device);
	cu.cuDeviceGetUuid_v2((CUuuid *)prop->uuid, device);
	prop->maxThreadsPerBlock = attribute(1, device);
	prop->sharedMemPerBlock = (size_t)attribute(8, device);
	prop->totalConstMem = (size_t)attribute(9, device);
	prop->warpSize = attribute(10, device);
	prop->memPitch = (size_t)attribute(11, device);
	prop->regsPerBlock = attribute(12, device);
	prop->textureAlignment = (size_t)attribute(14, device);
	prop->texturePitchAlignment = (size_t)attribute(51, device);
	prop->surfaceAlignment = (size_t)attribute(30, device);
	for (int i = 0; i < 3; i++) {
		prop->maxThreadsDim[i] = attribute(2 + i, device);
		prop->maxGridSize[i] = attribute(5 + i, device);
	}
#if CUDART_MAJOR < 13
	prop->clockRate = attribute(13, device);
	prop->deviceOverlap = attribute(15, device);
	prop->memoryClockRate = attribute(36, device);
#endif
	prop->multiProcessorCount = attribute(16, device);
	prop->canMapHostMemory = attribute(19, device);
	prop->concurrentKernels = attribute(31, device);
	prop->pciBusID = attribute(33, device);
	prop->memoryBusWidth = attribute(37, device);
	prop->l2CacheSize = attribute(38, device);
	prop->maxThreadsPerMultiProcessor = attribute(39, device);
	prop->asyncEngineCount = attribute(40, device);
	prop->unifiedAddressing = attribute(41, device);
	prop->major = attribute(75, device);
	prop->minor = attribute(76, device);
	prop->streamPrioritiesSupported = attribute(78, device);
	prop->globalL1CacheSupported = attribute(79, device);
	prop->localL1CacheSupported = attribute(80, device);
	prop->sharedMemPerMultiprocessor = (size_t)attribute(81, device);
	prop->regsPerMultiprocessor = attribute(82, device);
	prop->computePreemptionSupported = attribute(90, device);
	prop->canUseHostPointerForRegisteredMem = attribute(91, device);
	prop->cooperativeLaunch = attribute(95, device);
	prop->sharedMemPerBlockOptin = (size_t)attribute(97, device);
	prop->hostRegisterSupported = attribute(99, device);
	prop->maxBlocksPerMultiProcessor = attribute(106, device);
	prop->memoryPoolsSupported = attribute(115, device);
	return 0;
}

static int properties(void *target, size_t size, int device)
{
	struct cudaDeviceProp prop;
	int error = target ? fill(&prop, device) : (int)cudaErrorInvalidValue;
	if (!error)
		memcpy(target, &prop, size);
	return error;
}

#if CUDART_MAJOR >= 13
PASS(driver_start, cudaGetDeviceProperties, (struct cudaDeviceProp *prop, int device),
     properties(prop, sizeof *prop, device))
#else
PASS(driver_start, cudaGetDeviceProperties_v2, (struct cudaDeviceProp *prop, int device),
     properties(prop, sizeof *prop, device))
// Programs built for CUDA 11 use the plain name; their struct ends earlier.
PASS(driver_start, cudaGetDeviceProperties, (struct cudaDeviceProp *prop, int device),
     properties(prop, offsetof(struct cudaDeviceProp, hostRegisterSupported), device))
#endif
