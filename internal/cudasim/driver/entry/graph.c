// Graphs, as programs make, ask and launch them: what a capture recorded is replayed in that order.
#include <stdlib.h>
#include <string.h>

#include "entry/gate.h"

CUresult cuGraphCreate(CUgraph *handle, unsigned flags)
{
	ENTER(cuGraphCreate);
	if (!handle || flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct graph *graph = graph_new(GRAPH);
	if (!graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = object_handle(graph);
	return CUDA_SUCCESS;
}

// Nodes have no handles of their own; how many there are is what programs ask.
CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
	ENTER(cuGraphGetNodes);
	struct graph *graph = object_find(handle, GRAPH);
	if (!graph || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; nodes && i < *count; i++)
		nodes[i] = NULL;
	if (!nodes || *count > graph->operations.count)
		*count = graph->operations.count;
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle)
{
	struct graph *graph = object_find(graph_handle, GRAPH);
	if (!handle || !graph)
		return CUDA_ERROR_INVALID_VALUE;
	struct graph *exec = graph_new(GRAPH_EXEC);
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < graph->operations.count; i++) {
		if (!operations_append(&exec->operations, &graph->operations.items[i])) {
			graph_delete(exec);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*handle = object_handle(exec);
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTER(cuGraphInstantiateWithFlags);
	return flags & ~15ull ? CUDA_ERROR_INVALID_VALUE : instantiate(exec, graph);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER(cuGraphInstantiateWithParams);
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	params->hErrNode_out = NULL;
	params->result_out = 0;
	return instantiate(exec, graph);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream_handle)
{
	ENTER(cuGraphUpload);
	struct stream *stream;
	TRY(stream_resolve(stream_handle, &stream));
	return object_find(exec, GRAPH_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
	ENTER(cuGraphLaunch);
	struct stream *stream;
	struct graph *exec = object_find(handle, GRAPH_EXEC);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_resolve(stream_handle, &stream));
	for (size_t i = 0; i < exec->operations.count; i++)
		TRY(stream_submit(stream, &exec->operations.items[i]));
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle)
{
	ENTER(cuGraphDestroy);
	struct graph *graph = object_find(handle, GRAPH);
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	graph_delete(graph);
	return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
	ENTER(cuGraphExecDestroy);
	struct graph *exec = object_find(handle, GRAPH_EXEC);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	graph_delete(exec);
	return CUDA_SUCCESS;
}
