// Devices: choosing, describing, synchronizing, peers.
#include <string.h>

#include "runtime.h"

enum { RUNTIME_VERSION = CUDART_MAJOR >= 13 ? 13000 : 12090 };

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
	STARTED();
	return result(cu.cuDeviceGetCount(count));
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
	if (!device)
		return result(cudaErrorInvalidValue);
	STARTED();
	if (cu.cuCtxGetDevice(device) != CUDA_SUCCESS)
		*device = device_chosen();
	return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device)
{
	STARTED();
	return result(device_bind(device));
}

EXPORT cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
	CUcontext context;
	STARTED();
	if (flags & 1) {
		int error = cu.cuDevicePrimaryCtxSetFlags_v2(device, device_flags);
		if (error)
			return result(error);
	}
	return result(device_primary(device, &context));
}

EXPORT cudaError_t cudaSetDeviceFlags(unsigned flags)
{
	STARTED();
	return result(cu.cuDevicePrimaryCtxSetFlags_v2(device_chosen(), flags));
}

EXPORT cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
	int active;
	if (!flags)
		return result(cudaErrorInvalidValue);
	STARTED();
	return result(cu.cuDevicePrimaryCtxGetState(device_chosen(), flags, &active));
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
	READY();
	return result(cu.cuCtxSynchronize());
}

EXPORT cudaError_t cudaDeviceReset(void)
{
	STARTED();
	int device;
	if (cu.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		device = device_chosen();
	device_forget(device);
	return result(cu.cuDevicePrimaryCtxReset_v2(device));
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
	STARTED();
	return result(cu.cuDeviceGetAttribute(value, attribute, device));
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
	STARTED();
	return result(cu.cuDeviceGetPCIBusId(text, length, device));
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	READY();
	return result(cu.cuCtxGetStreamPriorityRange(least, greatest));
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	STARTED();
	return result(cu.cuDeviceCanAccessPeer(can, device, peer));
}

EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *value, int attribute, int device, int peer)
{
	STARTED();
	return result(cu.cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)attribute, device, peer));
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
	CUcontext context;
	READY();
	cudaError_t error = device_primary(peer, &context);
	return result(error ? error : (cudaError_t)cu.cuCtxEnablePeerAccess(context, flags));
}

EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
	CUcontext context;
	READY();
	cudaError_t error = device_primary(peer, &context);
	return result(error ? error : (cudaError_t)cu.cuCtxDisablePeerAccess(context));
}

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

static cudaError_t properties(void *target, size_t size, int device)
{
	struct cudaDeviceProp prop;
	if (!target)
		return result(cudaErrorInvalidValue);
	STARTED();
	int error = fill(&prop, device);
	if (!error)
		memcpy(target, &prop, size);
	return result(error);
}

#if CUDART_MAJOR >= 13
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
	return properties(prop, sizeof *prop, device);
}
#else
EXPORT cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *prop, int device)
{
	return properties(prop, sizeof *prop, device);
}

// The plain name is that of programs built for CUDA 11, whose struct ends earlier.
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
	return properties(prop, offsetof(struct cudaDeviceProp, hostRegisterSupported), device);
}
#endif
