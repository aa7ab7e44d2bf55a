// Events: marks in a stream that others wait for. execution/queue.c does the waiting.
#include "entry/gate.h"

static CUresult create(CUevent *handle, unsigned flags)
{
	if (!handle || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	struct event *event = object_new(EVENT, sizeof *event);
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->context = current_context();
	event->flags = flags;
	*handle = object_handle(event);
	return CUDA_SUCCESS;
}

static CUresult resolve(CUevent handle, struct event **event)
{
	*event = object_find(handle, EVENT);
	return *event ? (*event)->context->sticky : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult record(CUevent handle, CUstream stream_handle)
{
	struct event *event;
	struct stream *stream;
	TRY(resolve(handle, &event));
	TRY(stream_resolve(stream_handle, &stream));
	if (event->context != stream->context)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->legacy)
		TRY(capture_forbids_legacy(stream->context));
	if (stream->capture) {
		if (stream->capture->invalidated)
			return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		event->capture = stream->capture;
		event->captured_stream = stream->object.node.key;
		event->captured = stream->captured;
		return CUDA_SUCCESS;
	}
	uint64_t sequence;
	TRY(queue_push(stream, &(struct operation){.type = RECORD, .event = {.event = handle}}, &sequence));
	event->capture = NULL;
	event->recorded = sequence;
	event->whole = event->complete = false;
	return CUDA_SUCCESS;
}

static CUresult record_context(CUcontext context_handle, CUevent handle)
{
	struct context *context = object_find(context_handle, CONTEXT);
	struct event *event;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	TRY(resolve(handle, &event));
	if (event->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(capture_forbids_context(context));
	event->capture = NULL;
	event->recorded = queue_last;
	event->whole = true;
	event->complete = false;
	return CUDA_SUCCESS;
}

static CUresult resolve_to_wait(CUevent handle, struct event **event)
{
	TRY(resolve(handle, event));
	if ((*event)->capture)
		return capture_refuse((*event)->capture, CUDA_ERROR_CAPTURED_EVENT);
	return capture_forbids_unsafe();
}

static struct target work_before(const struct event *event)
{
	return event->whole ? (struct target){.context = event->context, .until = event->recorded}
			    : (struct target){.sequence = event->recorded};
}

// A program may wait by queries alone, so a query runs work.
static CUresult query(CUevent handle)
{
	struct event *event;
	TRY(resolve_to_wait(handle, &event));
	if (!event->recorded || event->complete)
		return CUDA_SUCCESS;
	bool done = queue_done(work_before(event));
	TRY(event->context->sticky);
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult synchronize(CUevent handle)
{
	struct event *event;
	TRY(resolve_to_wait(handle, &event));
	if (!event->recorded || event->complete)
		return CUDA_SUCCESS;
	struct context *context = event->context;
	queue_wait(work_before(event));
	return context->sticky;
}

static CUresult wait(CUstream stream_handle, CUevent handle, unsigned flags)
{
	struct event *event;
	struct stream *stream;
	if (flags & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(resolve(handle, &event));
	TRY(stream_resolve(stream_handle, &stream));
	if (event->capture)
		return capture_join(stream, event);
	if (!event->recorded || event->complete)
		return CUDA_SUCCESS;
	if (event->whole)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (stream->capture) // captured work can't depend on other work
		return capture_refuse(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	return stream_submit(stream,
			     &(struct operation){.type = WAIT, .event = {.sequence = event->recorded}});
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
	struct event *start, *end;
	TRY(resolve(start_handle, &start));
	TRY(resolve(end_handle, &end));
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->recorded || !end->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!start->complete || !end->complete)
		return CUDA_ERROR_NOT_READY;
	*milliseconds = (float)((double)(int64_t)(end->time - start->time) / 1e6);
	return CUDA_SUCCESS;
}

static CUresult destroy(CUevent handle)
{
	struct event *event = object_find(handle, EVENT);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	object_delete(&event->object);
	return CUDA_SUCCESS;
}

EVENT_FUNCTIONS(DEFINE, DEFINE_PTSZ)
