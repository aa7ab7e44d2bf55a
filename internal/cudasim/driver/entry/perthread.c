// The _ptds and _ptsz variants: the same functions with the calling thread's own default
// stream in place of the legacy one.
#include "abi/api.h"

static CUstream mine(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

// A synchronous call is the asynchronous one and a wait.
static CUresult finish(CUresult result)
{
	return result == CUDA_SUCCESS ? cuStreamSynchronize(CU_STREAM_PER_THREAD) : result;
}

CUresult cuMemcpy_ptds(CUdeviceptr target, CUdeviceptr source, size_t size)
{
	return finish(cuMemcpyAsync(target, source, size, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr target, const void *source, size_t size)
{
	return finish(cuMemcpyHtoDAsync_v2(target, source, size, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyDtoH_v2_ptds(void *target, CUdeviceptr source, size_t size)
{
	return finish(cuMemcpyDtoHAsync_v2(target, source, size, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr target, CUdeviceptr source, size_t size)
{
	return finish(cuMemcpyDtoDAsync_v2(target, source, size, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
			   CUcontext source_context, size_t size)
{
	return finish(cuMemcpyPeerAsync(target, target_context, source, source_context, size,
					CU_STREAM_PER_THREAD));
}

CUresult cuMemsetD8_v2_ptds(CUdeviceptr target, unsigned char value, size_t count)
{
	return finish(cuMemsetD8Async(target, value, count, CU_STREAM_PER_THREAD));
}

CUresult cuMemsetD16_v2_ptds(CUdeviceptr target, unsigned short value, size_t count)
{
	return finish(cuMemsetD16Async(target, value, count, CU_STREAM_PER_THREAD));
}

CUresult cuMemsetD32_v2_ptds(CUdeviceptr target, unsigned value, size_t count)
{
	return finish(cuMemsetD32Async(target, value, count, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyAsync_ptsz(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
	return cuMemcpyAsync(target, source, size, mine(stream));
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr target, const void *source, size_t size, CUstream stream)
{
	return cuMemcpyHtoDAsync_v2(target, source, size, mine(stream));
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void *target, CUdeviceptr source, size_t size, CUstream stream)
{
	return cuMemcpyDtoHAsync_v2(target, source, size, mine(stream));
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
	return cuMemcpyDtoDAsync_v2(target, source, size, mine(stream));
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
				CUcontext source_context, size_t size, CUstream stream)
{
	return cuMemcpyPeerAsync(target, target_context, source, source_context, size, mine(stream));
}

CUresult cuMemsetD8Async_ptsz(CUdeviceptr target, unsigned char value, size_t count, CUstream stream)
{
	return cuMemsetD8Async(target, value, count, mine(stream));
}

CUresult cuMemsetD16Async_ptsz(CUdeviceptr target, unsigned short value, size_t count, CUstream stream)
{
	return cuMemsetD16Async(target, value, count, mine(stream));
}

CUresult cuMemsetD32Async_ptsz(CUdeviceptr target, unsigned value, size_t count, CUstream stream)
{
	return cuMemsetD32Async(target, value, count, mine(stream));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
	return cuMemAllocAsync(address, size, mine(stream));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
	return cuMemAllocFromPoolAsync(address, size, pool, mine(stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	return cuMemFreeAsync(address, mine(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return cuStreamSynchronize(mine(stream));
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return cuStreamQuery(mine(stream));
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
	return cuStreamWaitEvent(mine(stream), event, flags);
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
	return cuStreamIsCapturing(mine(stream), status);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(mine(stream), mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
					  const CUgraphEdgeData *edges, size_t count,
					  CUstreamCaptureMode mode)
{
	return cuStreamBeginCaptureToGraph(mine(stream), graph, dependencies, edges, count, mode);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return cuStreamEndCapture(mine(stream), graph);
}

CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id,
					CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	return cuStreamGetCaptureInfo_v2(mine(stream), status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id,
					CUgraph *graph, const CUgraphNode **dependencies,
					const CUgraphEdgeData **edges, size_t *count)
{
	return cuStreamGetCaptureInfo_v3(mine(stream), status, id, graph, dependencies, edges, count);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return cuEventRecord(event, mine(stream));
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	return cuLaunchHostFunc(mine(stream), function, data);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
			     CUstream stream, void **parameters, void **extra)
{
	return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
			      mine(stream), parameters, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
			       void **extra)
{
	if (!config)
		return cuLaunchKernelEx(config, function, parameters, extra);
	CUlaunchConfig own = *config;
	own.hStream = mine(own.hStream);
	return cuLaunchKernelEx(&own, function, parameters, extra);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphLaunch(exec, mine(stream));
}
