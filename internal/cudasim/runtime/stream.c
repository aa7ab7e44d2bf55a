// Streams and events.
#include "runtime.h"

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	READY();
	return result(cu.cuStreamCreateWithPriority(stream, flags, priority));
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
	return cudaStreamCreateWithPriority(stream, flags, 0);
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
	return cudaStreamCreateWithPriority(stream, 0, 0);
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	READY();
	return result(cu.cuStreamDestroy_v2(stream));
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	READY();
	return result(cu.cuStreamSynchronize(stream));
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	READY();
	return result(cu.cuStreamQuery(stream));
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	READY();
	return result(cu.cuStreamWaitEvent(stream, event, flags));
}

EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
	READY();
	return result(cu.cuStreamGetFlags(stream, flags));
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
	READY();
	return result(cu.cuStreamGetPriority(stream, priority));
}

EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
	READY();
	return result(cu.cuStreamGetId(stream, id));
}

EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
	READY();
	return result(cu.cuStreamGetDevice(stream, device));
}

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
					 unsigned flags)
{
	READY();
	return result(cu.cuStreamAddCallback(stream, (CUstreamCallback)callback, data, flags));
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
	READY();
	return result(cu.cuLaunchHostFunc(stream, function, data));
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	READY();
	return result(cu.cuEventCreate(event, flags));
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	return cudaEventCreateWithFlags(event, 0);
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
	READY();
	return result(cu.cuEventRecordWithFlags(event, stream, flags));
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	return cudaEventRecordWithFlags(event, stream, 0);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
	READY();
	return result(cu.cuEventQuery(event));
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	READY();
	return result(cu.cuEventSynchronize(event));
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
	READY();
	return result(cu.cuEventElapsedTime_v2(milliseconds, start, end));
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	READY();
	return result(cu.cuEventDestroy_v2(event));
}

// The per-thread variants.
EXPORT cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream)
{
	return cudaStreamSynchronize(mine(stream));
}

EXPORT cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream)
{
	return cudaStreamQuery(mine(stream));
}

EXPORT cudaError_t cudaStreamWaitEvent_ptsz(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	return cudaStreamWaitEvent(mine(stream), event, flags);
}

EXPORT cudaError_t cudaStreamGetFlags_ptsz(cudaStream_t stream, unsigned *flags)
{
	return cudaStreamGetFlags(mine(stream), flags);
}

EXPORT cudaError_t cudaStreamGetPriority_ptsz(cudaStream_t stream, int *priority)
{
	return cudaStreamGetPriority(mine(stream), priority);
}

EXPORT cudaError_t cudaStreamGetId_ptsz(cudaStream_t stream, unsigned long long *id)
{
	return cudaStreamGetId(mine(stream), id);
}

EXPORT cudaError_t cudaStreamGetDevice_ptsz(cudaStream_t stream, int *device)
{
	return cudaStreamGetDevice(mine(stream), device);
}

EXPORT cudaError_t cudaStreamAddCallback_ptsz(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
					      unsigned flags)
{
	return cudaStreamAddCallback(mine(stream), callback, data, flags);
}

EXPORT cudaError_t cudaLaunchHostFunc_ptsz(cudaStream_t stream, cudaHostFn_t function, void *data)
{
	return cudaLaunchHostFunc(mine(stream), function, data);
}

EXPORT cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream)
{
	return cudaEventRecord(event, mine(stream));
}

EXPORT cudaError_t cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
	return cudaEventRecordWithFlags(event, mine(stream), flags);
}

#if CUDART_MAJOR < 13
EXPORT cudaError_t cudaEventElapsedTime_v2(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
	return cudaEventElapsedTime(milliseconds, start, end);
}
#endif
