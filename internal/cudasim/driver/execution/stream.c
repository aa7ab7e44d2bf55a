// Streams: created ones, and each context's default streams. queue.c has the work in them.
#include <stdlib.h>

#include "execution/execution.h"

uint64_t stream_new_id(void)
{
	static uint64_t last;
	return ++last;
}

struct stream *stream_default(struct context *context)
{
	struct stream *stream = calloc(1, sizeof *stream);
	if (!stream)
		return NULL;
	stream->object.type = STREAM;
	stream->object.node.key = (uint64_t)CU_STREAM_LEGACY;
	stream->context = context;
	stream->id = stream_new_id();
	stream->legacy = true;
	return stream;
}

static struct stream *thread_stream(struct context *context)
{
	int thread = thread_id();
	for (struct stream *stream = context->threads; stream; stream = stream->next_thread)
		if (stream->thread == thread)
			return stream;
	struct stream *stream = stream_default(context);
	if (!stream)
		return NULL;
	stream->object.node.key = (uint64_t)CU_STREAM_PER_THREAD;
	stream->legacy = false;
	stream->thread = thread;
	stream->next_thread = context->threads;
	context->threads = stream;
	return stream;
}

CUresult stream_resolve(CUstream handle, struct stream **result)
{
	if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		TRY(context_health());
		struct context *context = current_context();
		*result = handle == CU_STREAM_PER_THREAD ? thread_stream(context) : context->legacy;
		return *result ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	*result = object_find(handle, STREAM);
	return *result ? (*result)->context->sticky : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_submit(struct stream *stream, const struct operation *operation)
{
	if (stream->legacy)
		TRY(capture_forbids_legacy(stream->context));
	if (!stream->capture)
		return queue_push(stream, operation, NULL);
	if (stream->capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!graph_append(stream->capture->graph, operation))
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->captured++;
	stream->unjoined = stream != stream->capture->origin;
	return CUDA_SUCCESS;
}

void stream_delete(struct stream *stream)
{
	queue_drop(stream); // issued by another thread while this one waited
	captures_forget_stream(stream);
	if (stream->legacy || stream->thread)
		free(stream);
	else
		object_delete(&stream->object);
}

void streams_forget_context(struct context *context)
{
	struct stream *stream;
	for (uint64_t cursor = 0; (stream = object_next(STREAM, &cursor));)
		if (stream->context == context)
			stream_delete(stream);
	while (context->threads) {
		stream = context->threads;
		context->threads = stream->next_thread;
		stream_delete(stream);
	}
	stream_delete(context->legacy);
	context->legacy = NULL;
}
