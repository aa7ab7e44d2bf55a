// Copies and fills.
#include "runtime.h"

EXPORT cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t size, enum cudaMemcpyKind kind,
				   cudaStream_t stream)
{
	READY();
	CUdeviceptr to = (CUdeviceptr)target, from = (CUdeviceptr)source;
	if (!size && (unsigned)kind <= cudaMemcpyDefault)
		return cudaSuccess;
	switch (kind) {
	case cudaMemcpyHostToDevice: return result(cu.cuMemcpyHtoDAsync_v2(to, source, size, stream));
	case cudaMemcpyDeviceToHost: return result(cu.cuMemcpyDtoHAsync_v2(target, from, size, stream));
	case cudaMemcpyDeviceToDevice: return result(cu.cuMemcpyDtoDAsync_v2(to, from, size, stream));
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault: return result(cu.cuMemcpyAsync(to, from, size, stream));
	}
	return result(cudaErrorInvalidMemcpyDirection);
}

EXPORT cudaError_t cudaMemcpy(void *target, const void *source, size_t size, enum cudaMemcpyKind kind)
{
	READY();
	CUdeviceptr to = (CUdeviceptr)target, from = (CUdeviceptr)source;
	if (!size && (unsigned)kind <= cudaMemcpyDefault)
		return cudaSuccess;
	switch (kind) {
	case cudaMemcpyHostToDevice: return result(cu.cuMemcpyHtoD_v2(to, source, size));
	case cudaMemcpyDeviceToHost: return result(cu.cuMemcpyDtoH_v2(target, from, size));
	case cudaMemcpyDeviceToDevice: return result(cu.cuMemcpyDtoD_v2(to, from, size));
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault: return result(cu.cuMemcpy(to, from, size));
	}
	return result(cudaErrorInvalidMemcpyDirection);
}

static CUDA_MEMCPY2D rectangle(void *target, size_t target_pitch, const void *source, size_t source_pitch,
			       size_t width, size_t height)
{
	return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .srcDevice = (CUdeviceptr)source,
			       .srcPitch = source_pitch,
			       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .dstDevice = (CUdeviceptr)target,
			       .dstPitch = target_pitch,
			       .WidthInBytes = width,
			       .Height = height};
}

EXPORT cudaError_t cudaMemcpy2D(void *target, size_t target_pitch, const void *source, size_t source_pitch,
				size_t width, size_t height, enum cudaMemcpyKind kind)
{
	READY();
	if ((unsigned)kind > cudaMemcpyDefault)
		return result(cudaErrorInvalidMemcpyDirection);
	CUDA_MEMCPY2D copy = rectangle(target, target_pitch, source, source_pitch, width, height);
	return result(cu.cuMemcpy2D_v2(&copy));
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source,
				     size_t source_pitch, size_t width, size_t height,
				     enum cudaMemcpyKind kind, cudaStream_t stream)
{
	READY();
	if ((unsigned)kind > cudaMemcpyDefault)
		return result(cudaErrorInvalidMemcpyDirection);
	CUDA_MEMCPY2D copy = rectangle(target, target_pitch, source, source_pitch, width, height);
	return result(cu.cuMemcpy2DAsync_v2(&copy, stream));
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void *target, int target_device, const void *source, int source_device,
				       size_t size, cudaStream_t stream)
{
	READY();
	CUcontext to, from;
	cudaError_t error = device_primary(target_device, &to);
	if (!error)
		error = device_primary(source_device, &from);
	return result(error ? error
			    : (cudaError_t)cu.cuMemcpyPeerAsync((CUdeviceptr)target, to, (CUdeviceptr)source,
								from, size, stream));
}

EXPORT cudaError_t cudaMemcpyPeer(void *target, int target_device, const void *source, int source_device,
				  size_t size)
{
	READY();
	CUcontext to, from;
	cudaError_t error = device_primary(target_device, &to);
	if (!error)
		error = device_primary(source_device, &from);
	return result(error ? error
			    : (cudaError_t)cu.cuMemcpyPeer((CUdeviceptr)target, to, (CUdeviceptr)source, from,
							   size));
}

EXPORT cudaError_t cudaMemset(void *target, int value, size_t size)
{
	READY();
	return size ? result(cu.cuMemsetD8_v2((CUdeviceptr)target, (unsigned char)value, size)) : cudaSuccess;
}

EXPORT cudaError_t cudaMemsetAsync(void *target, int value, size_t size, cudaStream_t stream)
{
	READY();
	return size ? result(cu.cuMemsetD8Async((CUdeviceptr)target, (unsigned char)value, size, stream))
		    : cudaSuccess;
}

EXPORT cudaError_t cudaMemset2D(void *target, size_t pitch, int value, size_t width, size_t height)
{
	READY();
	return result(cu.cuMemsetD2D8_v2((CUdeviceptr)target, pitch, (unsigned char)value, width, height));
}

EXPORT cudaError_t cudaMemset2DAsync(void *target, size_t pitch, int value, size_t width, size_t height,
				     cudaStream_t stream)
{
	READY();
	return result(cu.cuMemsetD2D8Async((CUdeviceptr)target, pitch, (unsigned char)value, width, height,
					   stream));
}

// The per-thread variants: a synchronous call is the asynchronous one and a wait.
static cudaError_t finish(cudaError_t error)
{
	return error ? error : result(cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

EXPORT cudaError_t cudaMemcpy_ptds(void *target, const void *source, size_t size, enum cudaMemcpyKind kind)
{
	return finish(cudaMemcpyAsync(target, source, size, kind, CU_STREAM_PER_THREAD));
}

EXPORT cudaError_t cudaMemcpy2D_ptds(void *target, size_t target_pitch, const void *source,
				     size_t source_pitch, size_t width, size_t height,
				     enum cudaMemcpyKind kind)
{
	return finish(cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, height, kind,
					CU_STREAM_PER_THREAD));
}

EXPORT cudaError_t cudaMemset_ptds(void *target, int value, size_t size)
{
	return finish(cudaMemsetAsync(target, value, size, CU_STREAM_PER_THREAD));
}

EXPORT cudaError_t cudaMemset2D_ptds(void *target, size_t pitch, int value, size_t width, size_t height)
{
	return finish(cudaMemset2DAsync(target, pitch, value, width, height, CU_STREAM_PER_THREAD));
}

EXPORT cudaError_t cudaMemcpyAsync_ptsz(void *target, const void *source, size_t size,
					enum cudaMemcpyKind kind, cudaStream_t stream)
{
	return cudaMemcpyAsync(target, source, size, kind, mine(stream));
}

EXPORT cudaError_t cudaMemcpy2DAsync_ptsz(void *target, size_t target_pitch, const void *source,
					  size_t source_pitch, size_t width, size_t height,
					  enum cudaMemcpyKind kind, cudaStream_t stream)
{
	return cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, height, kind,
				 mine(stream));
}

EXPORT cudaError_t cudaMemsetAsync_ptsz(void *target, int value, size_t size, cudaStream_t stream)
{
	return cudaMemsetAsync(target, value, size, mine(stream));
}

EXPORT cudaError_t cudaMemset2DAsync_ptsz(void *target, size_t pitch, int value, size_t width, size_t height,
					  cudaStream_t stream)
{
	return cudaMemset2DAsync(target, pitch, value, width, height, mine(stream));
}
