// Device and host memory, pools, pointer attributes.
#include <string.h>

#include "runtime.h"

// An allocation of size 0 succeeds with NULL.
#define ALLOCATES(pointer, size, call) \
	(!(pointer) ? CUDA_ERROR_INVALID_VALUE : (*(pointer) = NULL, (size) ? cu.call : CUDA_SUCCESS))

static int pitched(void **pointer, size_t *pitch, size_t width, size_t height)
{
	if (!pointer || !pitch)
		return cudaErrorInvalidValue;
	*pitch = 0;
	return ALLOCATES(pointer, width && height,
			 cuMemAllocPitch_v2((CUdeviceptr *)pointer, pitch, width, height, 4));
}

static int cuboid(struct cudaPitchedPtr *made, struct cudaExtent extent)
{
	size_t rows;
	if (!made || __builtin_mul_overflow(extent.height, extent.depth, &rows))
		return cudaErrorInvalidValue;
	*made = (struct cudaPitchedPtr){.xsize = extent.width, .ysize = extent.height};
	return pitched(&made->ptr, &made->pitch, extent.width, rows);
}

static int attributes_of(struct cudaPointerAttributes *attributes, const void *pointer)
{
	if (!attributes)
		return cudaErrorInvalidValue;
	unsigned type = 0;
	int device = 0;
	uint64_t device_pointer = 0, host_pointer = 0;
	CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				       CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
				       CU_POINTER_ATTRIBUTE_HOST_POINTER};
	void *values[] = {&type, &device, &device_pointer, &host_pointer};
	int error = cu.cuPointerGetAttributes(4, names, values, (CUdeviceptr)pointer);
	if (error)
		return error;
	memset(attributes, 0, sizeof *attributes);
	attributes->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
			   : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
							: cudaMemoryTypeUnregistered;
	attributes->device = device;
	attributes->devicePointer = (void *)device_pointer;
	attributes->hostPointer = type ? (void *)host_pointer : (void *)pointer;
	return cudaSuccess;
}

PASS(ready, cudaMalloc, (void **pointer, size_t size),
     ALLOCATES(pointer, size, cuMemAlloc_v2((CUdeviceptr *)pointer, size)))
PASS(ready, cudaFree, (void *pointer), pointer ? cu.cuMemFree_v2((CUdeviceptr)pointer) : CUDA_SUCCESS)
PASS(ready, cudaMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t height),
     pitched(pointer, pitch, width, height))
PASS(ready, cudaMalloc3D, (struct cudaPitchedPtr *made, struct cudaExtent extent), cuboid(made, extent))
PASS(ready, cudaMallocManaged, (void **pointer, size_t size, unsigned flags),
     cu.cuMemAllocManaged((CUdeviceptr *)pointer, size, flags))
PASS_PTSZ(ready, cudaMallocAsync, (void **pointer, size_t size, cudaStream_t stream),
	  ALLOCATES(pointer, size, cuMemAllocAsync((CUdeviceptr *)pointer, size, stream)))
PASS_PTSZ(ready, cudaMallocFromPoolAsync, (void **pointer, size_t size, cudaMemPool_t pool, cudaStream_t stream),
	  ALLOCATES(pointer, size, cuMemAllocFromPoolAsync((CUdeviceptr *)pointer, size, pool, stream)))
PASS_PTSZ(ready, cudaFreeAsync, (void *pointer, cudaStream_t stream), cu.cuMemFreeAsync((CUdeviceptr)pointer, stream))
PASS(ready, cudaMemGetInfo, (size_t *available, size_t *total), cu.cuMemGetInfo_v2(available, total))
PASS(driver_start, cudaDeviceGetDefaultMemPool, (cudaMemPool_t *pool, int device),
     cu.cuDeviceGetDefaultMemPool(pool, device))
PASS(driver_start, cudaDeviceSetMemPool, (int device, cudaMemPool_t pool), cu.cuDeviceSetMemPool(device, pool))
PASS(driver_start, cudaMemPoolCreate, (cudaMemPool_t *pool, const CUmemPoolProps *props),
     cu.cuMemPoolCreate(pool, props))
PASS(driver_start, cudaMemPoolDestroy, (cudaMemPool_t pool), cu.cuMemPoolDestroy(pool))
PASS(driver_start, cudaMemPoolExportToShareableHandle,
     (void *shareable, cudaMemPool_t pool, int type, unsigned flags),
     cu.cuMemPoolExportToShareableHandle(shareable, pool, (CUmemAllocationHandleType)type, flags))
PASS(driver_start, cudaMemPoolImportFromShareableHandle,
     (cudaMemPool_t *pool, void *shareable, int type, unsigned flags),
     cu.cuMemPoolImportFromShareableHandle(pool, shareable, (CUmemAllocationHandleType)type, flags))
PASS(driver_start, cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), cu.cuMemPoolTrimTo(pool, keep))
PASS(driver_start, cudaMemPoolGetAttribute, (cudaMemPool_t pool, int attribute, void *value),
     cu.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value))
PASS(driver_start, cudaMemPoolSetAttribute, (cudaMemPool_t pool, int attribute, void *value),
     cu.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value))
PASS(ready, cudaHostAlloc, (void **pointer, size_t size, unsigned flags),
     ALLOCATES(pointer, size, cuMemHostAlloc(pointer, size, flags)))
PASS(ready, cudaMallocHost, (void **pointer, size_t size), ALLOCATES(pointer, size, cuMemHostAlloc(pointer, size, 0)))
PASS(ready, cudaFreeHost, (void *pointer), pointer ? cu.cuMemFreeHost(pointer) : CUDA_SUCCESS)
PASS(ready, cudaHostRegister, (void *pointer, size_t size, unsigned flags),
     cu.cuMemHostRegister_v2(pointer, size, flags))
PASS(ready, cudaHostUnregister, (void *pointer), cu.cuMemHostUnregister(pointer))
PASS(ready, cudaHostGetFlags, (unsigned *flags, void *pointer), cu.cuMemHostGetFlags(flags, pointer))
PASS(ready, cudaPointerGetAttributes, (struct cudaPointerAttributes *attributes, const void *pointer),
     attributes_of(attributes, pointer))
PASS(ready, cudaIpcGetMemHandle, (cudaIpcMemHandle_t *handle, void *pointer),
     cu.cuIpcGetMemHandle(handle, (CUdeviceptr)pointer))
PASS(ready, cudaIpcOpenMemHandle, (void **pointer, cudaIpcMemHandle_t handle, unsigned flags),
     cu.cuIpcOpenMemHandle_v2((CUdeviceptr *)pointer, handle, flags))
PASS(ready, cudaIpcCloseMemHandle, (void *pointer), cu.cuIpcCloseMemHandle((CUdeviceptr)pointer))
