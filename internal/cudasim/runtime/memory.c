// Device and host memory, pools, pointer attributes.
#include <string.h>

#include "runtime.h"

EXPORT cudaError_t cudaMalloc(void **pointer, size_t size)
{
	READY();
	if (!pointer)
		return result(cudaErrorInvalidValue);
	*pointer = NULL;
	return size ? result(cu.cuMemAlloc_v2((CUdeviceptr *)pointer, size)) : cudaSuccess;
}

EXPORT cudaError_t cudaFree(void *pointer)
{
	READY();
	return pointer ? result(cu.cuMemFree_v2((CUdeviceptr)pointer)) : cudaSuccess;
}

EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	READY();
	if (!pointer || !pitch)
		return result(cudaErrorInvalidValue);
	*pointer = NULL;
	*pitch = 0;
	if (!width || !height)
		return cudaSuccess;
	return result(cu.cuMemAllocPitch_v2((CUdeviceptr *)pointer, pitch, width, height, 4));
}

EXPORT cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pitched, struct cudaExtent extent)
{
	READY();
	size_t rows;
	if (!pitched || __builtin_mul_overflow(extent.height, extent.depth, &rows))
		return result(cudaErrorInvalidValue);
	*pitched = (struct cudaPitchedPtr){.xsize = extent.width, .ysize = extent.height};
	return cudaMallocPitch(&pitched->ptr, &pitched->pitch, extent.width, rows);
}

EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned flags)
{
	READY();
	return result(cu.cuMemAllocManaged((CUdeviceptr *)pointer, size, flags));
}

EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
	READY();
	if (!pointer)
		return result(cudaErrorInvalidValue);
	*pointer = NULL;
	return size ? result(cu.cuMemAllocAsync((CUdeviceptr *)pointer, size, stream)) : cudaSuccess;
}

EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t size, cudaMemPool_t pool,
					   cudaStream_t stream)
{
	READY();
	if (!pointer)
		return result(cudaErrorInvalidValue);
	*pointer = NULL;
	return size ? result(cu.cuMemAllocFromPoolAsync((CUdeviceptr *)pointer, size, pool, stream))
		    : cudaSuccess;
}

EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
	READY();
	return result(cu.cuMemFreeAsync((CUdeviceptr)pointer, stream));
}

EXPORT cudaError_t cudaMallocAsync_ptsz(void **pointer, size_t size, cudaStream_t stream)
{
	return cudaMallocAsync(pointer, size, mine(stream));
}

EXPORT cudaError_t cudaMallocFromPoolAsync_ptsz(void **pointer, size_t size, cudaMemPool_t pool,
						cudaStream_t stream)
{
	return cudaMallocFromPoolAsync(pointer, size, pool, mine(stream));
}

EXPORT cudaError_t cudaFreeAsync_ptsz(void *pointer, cudaStream_t stream)
{
	return cudaFreeAsync(pointer, mine(stream));
}

EXPORT cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	READY();
	return result(cu.cuMemGetInfo_v2(available, total));
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
	STARTED();
	return result(cu.cuDeviceGetDefaultMemPool(pool, device));
}

EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
	STARTED();
	return result(cu.cuDeviceGetMemPool(pool, device));
}

EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
	STARTED();
	return result(cu.cuDeviceSetMemPool(device, pool));
}

EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const CUmemPoolProps *props)
{
	STARTED();
	return result(cu.cuMemPoolCreate(pool, props));
}

EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
	STARTED();
	return result(cu.cuMemPoolDestroy(pool));
}

EXPORT cudaError_t cudaMemPoolExportToShareableHandle(void *shareable, cudaMemPool_t pool, int type, unsigned flags)
{
	STARTED();
	return result(cu.cuMemPoolExportToShareableHandle(shareable, pool, (CUmemAllocationHandleType)type, flags));
}

EXPORT cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t *pool, void *shareable, int type, unsigned flags)
{
	STARTED();
	return result(cu.cuMemPoolImportFromShareableHandle(pool, shareable, (CUmemAllocationHandleType)type, flags));
}

EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
	STARTED();
	return result(cu.cuMemPoolTrimTo(pool, keep));
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, int attribute, void *value)
{
	STARTED();
	return result(cu.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, int attribute, void *value)
{
	STARTED();
	return result(cu.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags)
{
	READY();
	if (!pointer)
		return result(cudaErrorInvalidValue);
	*pointer = NULL;
	return size ? result(cu.cuMemHostAlloc(pointer, size, flags)) : cudaSuccess;
}

EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size)
{
	return cudaHostAlloc(pointer, size, 0);
}

EXPORT cudaError_t cudaFreeHost(void *pointer)
{
	READY();
	return pointer ? result(cu.cuMemFreeHost(pointer)) : cudaSuccess;
}

EXPORT cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags)
{
	READY();
	return result(cu.cuMemHostRegister_v2(pointer, size, flags));
}

EXPORT cudaError_t cudaHostUnregister(void *pointer)
{
	READY();
	return result(cu.cuMemHostUnregister(pointer));
}

EXPORT cudaError_t cudaHostGetFlags(unsigned *flags, void *pointer)
{
	READY();
	return result(cu.cuMemHostGetFlags(flags, pointer));
}

EXPORT cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer, unsigned flags)
{
	READY();
	return result(cu.cuMemHostGetDevicePointer_v2((CUdeviceptr *)device_pointer, pointer, flags));
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
	READY();
	if (!attributes)
		return result(cudaErrorInvalidValue);
	unsigned type = 0;
	int device = 0;
	uint64_t device_pointer = 0, host_pointer = 0;
	CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				       CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
				       CU_POINTER_ATTRIBUTE_HOST_POINTER};
	void *values[] = {&type, &device, &device_pointer, &host_pointer};
	int error = cu.cuPointerGetAttributes(4, names, values, (CUdeviceptr)pointer);
	if (error)
		return result(error);
	memset(attributes, 0, sizeof *attributes);
	attributes->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
			   : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
							: cudaMemoryTypeUnregistered;
	attributes->device = device;
	attributes->devicePointer = (void *)device_pointer;
	attributes->hostPointer = type ? (void *)host_pointer : (void *)pointer;
	return cudaSuccess;
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
	READY();
	return result(cu.cuIpcGetMemHandle((CUipcMemHandle *)handle, (CUdeviceptr)pointer));
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags)
{
	READY();
	CUipcMemHandle same;
	memcpy(&same, &handle, sizeof same);
	return result(cu.cuIpcOpenMemHandle_v2((CUdeviceptr *)pointer, same, flags));
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
	READY();
	return result(cu.cuIpcCloseMemHandle((CUdeviceptr)pointer));
}

// Advice and prefetching are for managed memory, which stays where it is here.
#if CUDART_MAJOR >= 13
#define ADVISE cudaMemAdvise
#define PREFETCH cudaMemPrefetchAsync
#define PREFETCH_PTSZ cudaMemPrefetchAsync_ptsz
#else
#define ADVISE cudaMemAdvise_v2
#define PREFETCH cudaMemPrefetchAsync_v2
#define PREFETCH_PTSZ cudaMemPrefetchAsync_v2_ptsz

EXPORT cudaError_t cudaMemAdvise(const void *pointer, size_t size, int advice, int device)
{
	(void)pointer, (void)size, (void)advice, (void)device;
	return result(cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t size, int device, cudaStream_t stream)
{
	(void)pointer, (void)size, (void)device, (void)stream;
	return result(cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaMemPrefetchAsync_ptsz(const void *pointer, size_t size, int device,
					     cudaStream_t stream)
{
	return cudaMemPrefetchAsync(pointer, size, device, stream);
}
#endif

EXPORT cudaError_t ADVISE(const void *pointer, size_t size, int advice, struct cudaMemLocation location)
{
	(void)pointer, (void)size, (void)advice, (void)location;
	return result(cudaErrorInvalidValue);
}

EXPORT cudaError_t PREFETCH(const void *pointer, size_t size, struct cudaMemLocation location, unsigned flags,
			    cudaStream_t stream)
{
	(void)pointer, (void)size, (void)location, (void)flags, (void)stream;
	return result(cudaErrorInvalidValue);
}

EXPORT cudaError_t PREFETCH_PTSZ(const void *pointer, size_t size, struct cudaMemLocation location,
				 unsigned flags, cudaStream_t stream)
{
	return PREFETCH(pointer, size, location, flags, stream);
}
