// Copies and fills.
#include "runtime.h"

// stream: NULL for a synchronous copy. The driver checks the direction.
static int copy(void *target, const void *source, size_t size, enum cudaMemcpyKind kind, const cudaStream_t *stream)
{
	CUdeviceptr to = (CUdeviceptr)target, from = (CUdeviceptr)source;
	if (!size && (unsigned)kind <= cudaMemcpyDefault)
		return cudaSuccess;
	switch (kind) {
	case cudaMemcpyHostToDevice:
		return stream ? cu.cuMemcpyHtoDAsync_v2(to, source, size, *stream)
			      : cu.cuMemcpyHtoD_v2(to, source, size);
	case cudaMemcpyDeviceToHost:
		return stream ? cu.cuMemcpyDtoHAsync_v2(target, from, size, *stream)
			      : cu.cuMemcpyDtoH_v2(target, from, size);
	case cudaMemcpyDeviceToDevice:
		return stream ? cu.cuMemcpyDtoDAsync_v2(to, from, size, *stream) : cu.cuMemcpyDtoD_v2(to, from, size);
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault:
		return stream ? cu.cuMemcpyAsync(to, from, size, *stream) : cu.cuMemcpy(to, from, size);
	}
	return cudaErrorInvalidMemcpyDirection;
}

static int copy_2d(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
		   size_t height, enum cudaMemcpyKind kind)
{
	if ((unsigned)kind > cudaMemcpyDefault)
		return cudaErrorInvalidMemcpyDirection;
	CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			      .srcDevice = (CUdeviceptr)source,
			      .srcPitch = source_pitch,
			      .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			      .dstDevice = (CUdeviceptr)target,
			      .dstPitch = target_pitch,
			      .WidthInBytes = width,
			      .Height = height};
	return cu.cuMemcpy2D_v2(&copy);
}

static int copy_peer(void *target, int target_device, const void *source, int source_device, size_t size,
		     const cudaStream_t *stream)
{
	CUcontext to, from;
	cudaError_t error = device_primary(target_device, &to);
	if (!error)
		error = device_primary(source_device, &from);
	if (error)
		return error;
	return stream ? cu.cuMemcpyPeerAsync((CUdeviceptr)target, to, (CUdeviceptr)source, from, size, *stream)
		      : cu.cuMemcpyPeer((CUdeviceptr)target, to, (CUdeviceptr)source, from, size);
}

// On a per-thread stream, a synchronous call is the asynchronous one with a wait.
static int copy_on_own(void *target, const void *source, size_t size, enum cudaMemcpyKind kind)
{
	int error = copy(target, source, size, kind, &(cudaStream_t){CU_STREAM_PER_THREAD});
	return error ? error : (int)cu.cuStreamSynchronize(CU_STREAM_PER_THREAD);
}

PASS_PTSZ(ready, cudaMemcpyAsync,
	  (void *target, const void *source, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream),
	  copy(target, source, size, kind, &stream))
PASS(ready, cudaMemcpy, (void *target, const void *source, size_t size, enum cudaMemcpyKind kind),
     copy(target, source, size, kind, NULL))
PASS(ready, cudaMemcpy_ptds, (void *target, const void *source, size_t size, enum cudaMemcpyKind kind),
     copy_on_own(target, source, size, kind))
PASS(ready, cudaMemcpy2D,
     (void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width, size_t height,
      enum cudaMemcpyKind kind),
     copy_2d(target, target_pitch, source, source_pitch, width, height, kind))
PASS(ready, cudaMemcpyPeerAsync,
     (void *target, int target_device, const void *source, int source_device, size_t size, cudaStream_t stream),
     copy_peer(target, target_device, source, source_device, size, &stream))
PASS(ready, cudaMemcpyPeer,
     (void *target, int target_device, const void *source, int source_device, size_t size),
     copy_peer(target, target_device, source, source_device, size, NULL))
PASS_PTSZ(ready, cudaMemsetAsync, (void *target, int value, size_t size, cudaStream_t stream),
	  size ? cu.cuMemsetD8Async((CUdeviceptr)target, (unsigned char)value, size, stream) : CUDA_SUCCESS)
PASS(ready, cudaMemset, (void *target, int value, size_t size),
     size ? cu.cuMemsetD8_v2((CUdeviceptr)target, (unsigned char)value, size) : CUDA_SUCCESS)
