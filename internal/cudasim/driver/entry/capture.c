// Stream capture: which streams are being recorded into a graph, and what it forbids.
#include <stdlib.h>

#include "base/sim.h"

void capture_invalidate(struct capture *capture)
{
	capture->invalidated = true;
}

// Every stream and event of the capture goes back to normal.
static void release_members(struct capture *capture)
{
	for (struct tree_node *node = tree_ceiling(&sim.objects, 0); node;
	     node = tree_ceiling(&sim.objects, node->key + 1)) {
		struct object *object = (struct object *)node;
		if (object->type == STREAM && ((struct stream *)object)->capture == capture)
			((struct stream *)object)->capture = NULL;
		if (object->type == EVENT && ((struct event *)object)->capture == capture)
			((struct event *)object)->capture = NULL;
		if (object->type == CONTEXT)
			for (struct stream *stream = ((struct context *)object)->threads; stream;
			     stream = stream->next_thread)
				if (stream->capture == capture)
					stream->capture = NULL;
	}
}

void capture_delete(struct capture *capture)
{
	release_members(capture);
	struct capture **slot = &sim.captures;
	while (*slot != capture)
		slot = &(*slot)->next;
	*slot = capture->next;
	if (capture->graph && !capture->borrowed)
		graph_delete(capture->graph);
	free(capture);
}

void captures_forget_stream(struct stream *stream)
{
	if (!stream->capture)
		return;
	if (stream->capture->origin == stream)
		capture_delete(stream->capture);
	else
		capture_invalidate(stream->capture);
	stream->capture = NULL;
}

void captures_forget_graph(struct graph *graph)
{
	for (struct capture *capture = sim.captures; capture; capture = capture->next) {
		if (capture->graph != graph)
			continue;
		capture->graph = NULL;
		capture_invalidate(capture);
	}
}

static CUresult refuse(struct capture *capture, CUresult code)
{
	capture_invalidate(capture);
	return code;
}

// By the rules of cuThreadExchangeStreamCaptureMode: a thread in global mode is held by its
// own captures and everybody's global ones, one in thread-local mode by its own, one in
// relaxed mode by none.
CUresult capture_forbids_unsafe(void)
{
	CUstreamCaptureMode mode = thread_state()->capture_mode;
	if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct capture *capture = sim.captures; capture; capture = capture->next) {
		if (capture->invalidated || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		if (capture->thread == thread_id() ||
		    (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL))
			return refuse(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	return CUDA_SUCCESS;
}

CUresult capture_forbids_context(const struct context *context)
{
	for (struct capture *capture = sim.captures; capture; capture = capture->next)
		if (!capture->invalidated && capture->origin->context == context)
			return refuse(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return CUDA_SUCCESS;
}

// Work on the legacy stream would have to wait for the blocking streams, the captured ones too.
CUresult capture_forbids_legacy(const struct context *context)
{
	for (struct capture *capture = sim.captures; capture; capture = capture->next)
		if (!capture->invalidated && capture->origin->context == context &&
		    !(capture->origin->flags & CU_STREAM_NON_BLOCKING))
			return refuse(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return CUDA_SUCCESS;
}

CUresult capture_join(struct stream *stream, struct event *event)
{
	struct capture *capture = event->capture;
	if (capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capture && stream->capture != capture) {
		capture_invalidate(stream->capture);
		return refuse(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	if (stream->legacy || stream->context != capture->origin->context)
		return refuse(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (!stream->capture) {
		stream->capture = capture;
		stream->captured = 0;
		stream->unjoined = true;
	}
	struct stream *recorded = object_find((void *)event->captured_stream, STREAM);
	if (recorded && recorded != stream && recorded->capture == capture &&
	    recorded->captured == event->captured)
		recorded->unjoined = false;
	return CUDA_SUCCESS;
}

static bool unjoined(const struct capture *capture)
{
	for (struct tree_node *node = tree_ceiling(&sim.objects, 0); node;
	     node = tree_ceiling(&sim.objects, node->key + 1)) {
		struct stream *stream = (struct stream *)node;
		if (stream->object.type == STREAM && stream->capture == capture &&
		    stream != capture->origin && stream->unjoined)
			return true;
	}
	return false;
}

// Into the graph given, or one of its own.
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
	bool borrowed = graph != NULL;
	struct capture *capture = calloc(1, sizeof *capture);
	if (capture && !graph)
		graph = graph_new(GRAPH);
	if (!capture || !graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*capture = (struct capture){.id = ++sim.next_id,
				    .mode = mode,
				    .thread = thread_id(),
				    .origin = stream,
				    .graph = graph,
				    .borrowed = borrowed,
				    .next = sim.captures};
	sim.captures = capture;
	stream->capture = capture;
	stream->captured = 0;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	ENTER(cuStreamBeginCapture_v2);
	return begin(stream, NULL, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph handle, const CUgraphNode *dependencies,
				     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
	ENTER(cuStreamBeginCaptureToGraph);
	struct graph *graph = object_find(handle, GRAPH);
	if (!graph || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	(void)edges; // a graph is one chain: what is added depends on all that is there
	return begin(stream, graph, mode);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	ENTER(cuStreamEndCapture);
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	struct capture *capture = stream->capture;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream)
		return refuse(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_id())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	CUresult result = capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
			  : unjoined(capture)  ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
					       : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		*graph = object_handle(capture->graph);
		capture->graph = NULL; // the caller's from now on
	}
	capture_delete(capture);
	return result;
}

static CUstreamCaptureStatus status_of(const struct stream *stream)
{
	if (!stream->capture)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult info(CUstream handle, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph)
{
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->legacy)
		TRY(capture_forbids_legacy(stream->context));
	*status = status_of(stream);
	if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_SUCCESS;
	if (id)
		*id = stream->capture->id;
	if (graph)
		*graph = object_handle(stream->capture->graph);
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	ENTER(cuStreamIsCapturing);
	return info(stream, status, NULL, NULL);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id)
{
	ENTER(cuStreamGetCaptureInfo);
	return info(stream, status, id, NULL);
}

// Nodes are not simulated: there are no dependencies to report.
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	ENTER(cuStreamGetCaptureInfo_v2);
	if (dependencies)
		*dependencies = NULL;
	if (count)
		*count = 0;
	return info(stream, status, id, graph);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id,
				   CUgraph *graph, const CUgraphNode **dependencies,
				   const CUgraphEdgeData **edges, size_t *count)
{
	ENTER(cuStreamGetCaptureInfo_v3);
	if (dependencies)
		*dependencies = NULL;
	if (edges)
		*edges = NULL;
	if (count)
		*count = 0;
	return info(stream, status, id, graph);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	ENTER(cuThreadExchangeStreamCaptureMode);
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode previous = thread_state()->capture_mode;
	thread_state()->capture_mode = *mode;
	*mode = previous;
	return CUDA_SUCCESS;
}
