// Capture: how programs begin, end and query one. execution/capture.c has what it records and forbids.
#include "entry/gate.h"

static CUresult begin(CUstream handle, struct graph *graph, CUstreamCaptureMode mode)
{
	struct stream *stream;
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_resolve(handle, &stream));
	if (stream->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	return capture_begin(stream, graph, mode);
}

// A graph is one chain: a new operation depends on all before it.
static CUresult begin_to_graph(CUstream stream, CUgraph handle, const CUgraphNode *dependencies, size_t count,
			       CUstreamCaptureMode mode)
{
	struct graph *graph = object_find(handle, GRAPH);
	if (!graph || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	return begin(stream, graph, mode);
}

static CUresult end(CUstream handle, CUgraph *graph)
{
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	struct capture *capture = stream->capture;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream)
		return capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_id())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	CUresult result = capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
			  : capture_unjoined(capture)  ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
					       : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		*graph = object_handle(capture->graph);
		capture->graph = NULL; // it belongs to the caller from now on
	}
	capture_delete(capture);
	return result;
}

// The graph is the graphics API's.
static CUresult end_to_cig(CUstream stream)
{
	CUgraph graph;
	TRY(end(stream, &graph));
	graph_delete(object_find(graph, GRAPH));
	return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->legacy)
		TRY(capture_forbids_legacy(stream->context));
	*status = !stream->capture		 ? CU_STREAM_CAPTURE_STATUS_NONE
		  : stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
						 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode previous = thread_state()->capture_mode;
	thread_state()->capture_mode = *mode;
	*mode = previous;
	return CUDA_SUCCESS;
}

CAPTURE_FUNCTIONS(DEFINE, DEFINE_PTSZ)
