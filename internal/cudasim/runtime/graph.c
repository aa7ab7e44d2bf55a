// Stream capture and graphs.
#include "runtime.h"

PASS(ready, cudaThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode),
     cu.cuThreadExchangeStreamCaptureMode(mode))
PASS_PTSZ(ready, cudaStreamBeginCapture, (cudaStream_t stream, CUstreamCaptureMode mode),
	  cu.cuStreamBeginCapture_v2(stream, mode))
PASS_PTSZ(ready, cudaStreamBeginCaptureToGraph,
	  (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
	   const cudaGraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
	  cu.cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode))
PASS_PTSZ(ready, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph), cu.cuStreamEndCapture(stream, graph))
PASS_PTSZ(ready, cudaStreamIsCapturing, (cudaStream_t stream, CUstreamCaptureStatus *status),
	  cu.cuStreamIsCapturing(stream, status))
PASS(driver_start, cudaGraphCreate, (cudaGraph_t *graph, unsigned flags), cu.cuGraphCreate(graph, flags))
PASS(ready, cudaGraphInstantiate, (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags),
     cu.cuGraphInstantiateWithFlags(exec, graph, flags))
PASS_PTSZ(ready, cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), cu.cuGraphLaunch(exec, stream))
PASS(driver_start, cudaGraphDestroy, (cudaGraph_t graph), cu.cuGraphDestroy(graph))
PASS(driver_start, cudaGraphExecDestroy, (cudaGraphExec_t exec), cu.cuGraphExecDestroy(exec))
