// Stream capture and graphs.
#include "runtime.h"

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	READY();
	return result(cu.cuThreadExchangeStreamCaptureMode(mode));
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, CUstreamCaptureMode mode)
{
	READY();
	return result(cu.cuStreamBeginCapture_v2(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
						 const cudaGraphNode_t *dependencies,
						 const cudaGraphEdgeData *edges, size_t count,
						 CUstreamCaptureMode mode)
{
	READY();
	return result(cu.cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	READY();
	return result(cu.cuStreamEndCapture(stream, graph));
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, CUstreamCaptureStatus *status)
{
	READY();
	return result(cu.cuStreamIsCapturing(stream, status));
}

static cudaError_t info(cudaStream_t stream, CUstreamCaptureStatus *status, unsigned long long *id,
			cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
			const cudaGraphEdgeData **edges, size_t *count)
{
	READY();
	return result(cu.cuStreamGetCaptureInfo_v3(stream, status, (uint64_t *)id, graph, dependencies, edges,
						   count));
}

#if CUDART_MAJOR >= 13
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, CUstreamCaptureStatus *status,
					    unsigned long long *id, cudaGraph_t *graph,
					    const cudaGraphNode_t **dependencies,
					    const cudaGraphEdgeData **edges, size_t *count)
{
	return info(stream, status, id, graph, dependencies, edges, count);
}

EXPORT cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, CUstreamCaptureStatus *status,
						 unsigned long long *id, cudaGraph_t *graph,
						 const cudaGraphNode_t **dependencies,
						 const cudaGraphEdgeData **edges, size_t *count)
{
	return info(mine(stream), status, id, graph, dependencies, edges, count);
}
#else
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, CUstreamCaptureStatus *status,
					    unsigned long long *id)
{
	return info(stream, status, id, NULL, NULL, NULL, NULL);
}

EXPORT cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, CUstreamCaptureStatus *status,
						 unsigned long long *id)
{
	return info(mine(stream), status, id, NULL, NULL, NULL, NULL);
}

EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, CUstreamCaptureStatus *status,
					       unsigned long long *id, cudaGraph_t *graph,
					       const cudaGraphNode_t **dependencies, size_t *count)
{
	return info(stream, status, id, graph, dependencies, NULL, count);
}

EXPORT cudaError_t cudaStreamGetCaptureInfo_v2_ptsz(cudaStream_t stream, CUstreamCaptureStatus *status,
						    unsigned long long *id, cudaGraph_t *graph,
						    const cudaGraphNode_t **dependencies, size_t *count)
{
	return info(mine(stream), status, id, graph, dependencies, NULL, count);
}

EXPORT cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, CUstreamCaptureStatus *status,
					       unsigned long long *id, cudaGraph_t *graph,
					       const cudaGraphNode_t **dependencies,
					       const cudaGraphEdgeData **edges, size_t *count)
{
	return info(stream, status, id, graph, dependencies, edges, count);
}

EXPORT cudaError_t cudaStreamGetCaptureInfo_v3_ptsz(cudaStream_t stream, CUstreamCaptureStatus *status,
						    unsigned long long *id, cudaGraph_t *graph,
						    const cudaGraphNode_t **dependencies,
						    const cudaGraphEdgeData **edges, size_t *count)
{
	return info(mine(stream), status, id, graph, dependencies, edges, count);
}
#endif

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
	STARTED();
	return result(cu.cuGraphCreate(graph, flags));
}

EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
	STARTED();
	return result(cu.cuGraphGetNodes(graph, nodes, count));
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
						 unsigned long long flags)
{
	READY();
	return result(cu.cuGraphInstantiateWithFlags(exec, graph, flags));
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
						  cudaGraphInstantiateParams *params)
{
	READY();
	return result(cu.cuGraphInstantiateWithParams(exec, graph, params));
}

EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
	READY();
	return result(cu.cuGraphUpload(exec, stream));
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	READY();
	return result(cu.cuGraphLaunch(exec, stream));
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	STARTED();
	return result(cu.cuGraphDestroy(graph));
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	STARTED();
	return result(cu.cuGraphExecDestroy(exec));
}

// The per-thread variants.
EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, CUstreamCaptureMode mode)
{
	return cudaStreamBeginCapture(mine(stream), mode);
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph,
						      const cudaGraphNode_t *dependencies,
						      const cudaGraphEdgeData *edges, size_t count,
						      CUstreamCaptureMode mode)
{
	return cudaStreamBeginCaptureToGraph(mine(stream), graph, dependencies, edges, count, mode);
}

EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph)
{
	return cudaStreamEndCapture(mine(stream), graph);
}

EXPORT cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream, CUstreamCaptureStatus *status)
{
	return cudaStreamIsCapturing(mine(stream), status);
}

EXPORT cudaError_t cudaGraphUpload_ptsz(cudaGraphExec_t exec, cudaStream_t stream)
{
	return cudaGraphUpload(exec, mine(stream));
}

EXPORT cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream)
{
	return cudaGraphLaunch(exec, mine(stream));
}
