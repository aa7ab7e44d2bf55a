// Graphs: how programs make, query and launch them. A launch replays what a capture recorded, in that order.
#include "entry/gate.h"

static CUresult create(CUgraph *handle, unsigned flags)
{
	if (!handle || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = object_handle(graph_new(GRAPH));
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle)
{
	struct graph *graph = object_find(graph_handle, GRAPH);
	if (!handle || !graph)
		return CUDA_ERROR_INVALID_VALUE;
	struct graph *exec = graph_new(GRAPH_EXEC);
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < graph->count; i++) {
		if (!graph_append(exec, &graph->operations[i])) {
			graph_delete(exec);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*handle = object_handle(exec);
	return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle)
{
	struct stream *stream;
	struct graph *exec = object_find(handle, GRAPH_EXEC);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_resolve(stream_handle, &stream));
	for (size_t i = 0; i < exec->count; i++)
		TRY(stream_submit(stream, &exec->operations[i]));
	return CUDA_SUCCESS;
}

static CUresult destroy(const void *handle, enum object_type type)
{
	struct graph *graph = object_find(handle, type);
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	graph_delete(graph);
	return CUDA_SUCCESS;
}

GRAPH_FUNCTIONS(DEFINE, DEFINE_PTSZ)
