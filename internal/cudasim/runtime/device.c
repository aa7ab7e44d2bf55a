// Devices: choosing, describing, synchronizing, peers.
#include <string.h>

#include "../driver/abi/attributes.h"
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

static int enable_peer(int peer, unsigned flags)
{
	CUcontext context;
	cudaError_t error = device_primary(peer, &context);
	return error ? (int)error : (int)cu.cuCtxEnablePeerAccess(context, flags);
}

PASS(driver_start, cudaGetDevice, (int *device), current(device))
PASS(driver_start, cudaSetDevice, (int device), device_bind(device))
PASS(ready, cudaDeviceSynchronize, (void), cu.cuCtxSynchronize())
PASS(driver_start, cudaDeviceReset, (void), reset())
PASS(driver_start, cudaDeviceGetAttribute, (int *value, int attribute, int device),
     cu.cuDeviceGetAttribute(value, attribute, device))
PASS(driver_start, cudaDeviceCanAccessPeer, (int *can, int device, int peer),
     cu.cuDeviceCanAccessPeer(can, device, peer))
PASS(ready, cudaDeviceEnablePeerAccess, (int peer, unsigned flags), enable_peer(peer, flags))

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
#define FIELD(number, name, value, field) prop->field = attribute(number, device);
#if CUDART_MAJOR < 13
	DEVICE_ATTRIBUTES(NOTHING, FIELD, FIELD)
#else
	DEVICE_ATTRIBUTES(NOTHING, FIELD, NOTHING)
#endif
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
