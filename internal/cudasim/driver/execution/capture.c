// Stream capture: which streams and events are being recorded into a graph, and what that forbids.
#include <stdlib.h>

#include "execution/execution.h"

struct capture *captures;

CUresult capture_refuse(struct capture *capture, CUresult code)
{
	capture->invalidated = true;
	return code;
}

// Takes every stream and event out of the capture.
static void release_members(struct capture *capture)
{
	struct stream *stream;
	struct event *event;
	struct context *context;
	for (uint64_t cursor = 0; (stream = object_next(STREAM, &cursor));)
		if (stream->capture == capture)
			stream->capture = NULL;
	for (uint64_t cursor = 0; (event = object_next(EVENT, &cursor));)
		if (event->capture == capture)
			event->capture = NULL;
	for (uint64_t cursor = 0; (context = object_next(CONTEXT, &cursor));)
		for (stream = context->threads; stream; stream = stream->next_thread)
			if (stream->capture == capture)
				stream->capture = NULL;
}

void capture_delete(struct capture *capture)
{
	release_members(capture);
	struct capture **slot = &captures;
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
		stream->capture->invalidated = true;
	stream->capture = NULL;
}

void captures_forget_graph(struct graph *graph)
{
	for (struct capture *capture = captures; capture; capture = capture->next) {
		if (capture->graph != graph)
			continue;
		capture->graph = NULL;
		capture->invalidated = true;
	}
}

// The rules of cuThreadExchangeStreamCaptureMode: its own captures and all global captures bind a thread in global
// mode, its own bind one in thread-local mode, and none binds one in relaxed mode.
CUresult capture_forbids_unsafe(void)
{
	CUstreamCaptureMode mode = thread_state()->capture_mode;
	if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct capture *capture = captures; capture; capture = capture->next) {
		if (capture->invalidated || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		if (capture->thread == thread_id() ||
		    (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL))
			return capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	return CUDA_SUCCESS;
}

CUresult capture_forbids_context(const struct context *context)
{
	for (struct capture *capture = captures; capture; capture = capture->next)
		if (!capture->invalidated && capture->origin->context == context)
			return capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return CUDA_SUCCESS;
}

// Work on the legacy stream would have to wait for the blocking streams, including captured ones.
CUresult capture_forbids_legacy(const struct context *context)
{
	for (struct capture *capture = captures; capture; capture = capture->next)
		if (!capture->invalidated && capture->origin->context == context &&
		    !(capture->origin->flags & CU_STREAM_NON_BLOCKING))
			return capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return CUDA_SUCCESS;
}

CUresult capture_join(struct stream *stream, struct event *event)
{
	struct capture *capture = event->capture;
	if (capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capture && stream->capture != capture) {
		stream->capture->invalidated = true;
		return capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	if (stream->legacy || stream->context != capture->origin->context)
		return capture_refuse(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
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

bool capture_unjoined(const struct capture *capture)
{
	struct stream *stream;
	for (uint64_t cursor = 0; (stream = object_next(STREAM, &cursor));)
		if (stream->capture == capture && stream != capture->origin && stream->unjoined)
			return true;
	return false;
}

CUresult capture_begin(struct stream *stream, struct graph *graph, CUstreamCaptureMode mode)
{
	bool borrowed = graph != NULL;
	struct capture *capture = calloc(1, sizeof *capture);
	if (capture && !graph)
		graph = graph_new(GRAPH);
	if (!capture || !graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*capture = (struct capture){.mode = mode,
				    .thread = thread_id(),
				    .origin = stream,
				    .graph = graph,
				    .borrowed = borrowed,
				    .next = captures};
	captures = capture;
	stream->capture = capture;
	stream->captured = 0;
	return CUDA_SUCCESS;
}
