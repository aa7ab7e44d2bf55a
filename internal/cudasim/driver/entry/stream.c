// Streams: how programs create, query and wait for them, and host functions in them.
#include "entry/gate.h"

static CUresult create(CUstream *handle, unsigned flags)
{
	if (!handle || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	struct stream *stream = object_new(STREAM, sizeof *stream);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->context = current_context();
	stream->flags = flags;
	stream->id = stream_new_id();
	*handle = object_handle(stream);
	return CUDA_SUCCESS;
}

static CUresult destroy(CUstream handle)
{
	struct stream *stream = object_find(handle, STREAM);
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	queue_wait((struct target){.stream = stream}); // its work ends before it does
	CUresult result = stream->context->sticky;
	stream_delete(stream);
	return result;
}

static CUresult context_of(CUstream handle, CUcontext *context)
{
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	return GIVES(context, object_handle(stream->context));
}

static CUresult id_of(CUstream handle, unsigned long long *id)
{
	struct stream *stream;
	TRY(stream_resolve(handle, &stream));
	return GIVES(id, stream->id);
}

static CUresult resolve_to_wait(CUstream handle, struct stream **stream)
{
	TRY(stream_resolve(handle, stream));
	if ((*stream)->legacy)
		TRY(capture_forbids_legacy((*stream)->context));
	struct capture *capture = (*stream)->capture;
	if (!capture)
		return capture_forbids_unsafe();
	return capture_refuse(capture, capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
							    : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

// The legacy stream stands for all blocking streams.
static struct target work_of(const struct stream *stream)
{
	return stream->legacy ? queue_turn(stream) : (struct target){.stream = stream};
}

CUresult stream_wait(CUstream handle)
{
	struct stream *stream;
	TRY(resolve_to_wait(handle, &stream));
	struct context *context = stream->context;
	queue_wait(work_of(stream));
	return context->sticky;
}

// A program may wait by queries alone, so a query runs work.
static CUresult query(CUstream handle)
{
	struct stream *stream;
	TRY(resolve_to_wait(handle, &stream));
	bool done = queue_done(work_of(stream));
	TRY(stream->context->sticky);
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult launch_host(CUstream handle, CUhostFn function, void *data)
{
	struct stream *stream;
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_resolve(handle, &stream));
	return stream_submit(stream, &(struct operation){.type = HOST_FUNCTION,
							 .host = {.function = function, .data = data}});
}

STREAM_FUNCTIONS(DEFINE, DEFINE_PTSZ)
