// Copies and fills, checked when they are issued; execution/operation.c checks them again when they run.
#include "entry/gate.h"

// The device of the caller's current context, whatever the stream, as in the driver.
enum { CALLER = -1 };

enum direction { ANY_DIRECTION, TO_DEVICE, FROM_DEVICE, ON_DEVICE };

struct request {
	struct operation operation;
	CUresult refused; // CUDA_SUCCESS: not refused
};

static struct request copy(uint64_t target, uint64_t source, uint64_t size)
{
	return (struct request){
		{.type = COPY, .copy = {target, size, source, size, size, 1, CALLER, CALLER}}, CUDA_SUCCESS};
}

static struct request fill(uint64_t target, uint32_t value, uint32_t element, uint64_t count)
{
	return (struct request){
		{.type = SET, .set = {target, element * count, element * count, 1, value, element}}, CUDA_SUCCESS};
}

static uint64_t span(uint64_t pitch, uint64_t width, uint64_t height)
{
	return width && height ? pitch * (height - 1) + width : 0;
}

// Reports whether an address may be what the direction says: device memory, or pinned host memory seen through unified
// addressing.
static bool device_side(enum place place, uint64_t address, uint64_t size)
{
	return place == PLACE_DEVICE || host_pinned(address, size);
}

static CUresult check_copy(const struct operation *operation, enum direction direction, bool *pageable)
{
	uint64_t target = operation->copy.target, source = operation->copy.source;
	uint64_t target_size = span(operation->copy.target_pitch, operation->copy.width,
				    operation->copy.height);
	uint64_t source_size = span(operation->copy.source_pitch, operation->copy.width,
				    operation->copy.height);
	*pageable = false;
	if (!target_size)
		return CUDA_SUCCESS;
	enum place to = memory_place(copy_reach(operation->copy.target_device), target, target_size, true);
	enum place from = memory_place(copy_reach(operation->copy.source_device), source, source_size, false);
	if (to == PLACE_FORBIDDEN || from == PLACE_FORBIDDEN || !target || !source)
		return CUDA_ERROR_INVALID_VALUE;
	if ((direction == TO_DEVICE || direction == ON_DEVICE) && !device_side(to, target, target_size))
		return CUDA_ERROR_INVALID_VALUE;
	if ((direction == FROM_DEVICE || direction == ON_DEVICE) && !device_side(from, source, source_size))
		return CUDA_ERROR_INVALID_VALUE;
	*pageable = (to == PLACE_HOST && !host_pinned(target, target_size)) ||
		    (from == PLACE_HOST && !host_pinned(source, source_size));
	return CUDA_SUCCESS;
}

static CUresult check_fill(struct context *context, const struct operation *operation)
{
	uint64_t target = operation->set.target;
	uint64_t size = span(operation->set.pitch, operation->set.width, operation->set.height);
	if (target % operation->set.element)
		return CUDA_ERROR_INVALID_VALUE;
	if (!size)
		return CUDA_SUCCESS;
	enum place place = memory_place(kernel_reach(context), target, size, true);
	return place != PLACE_FORBIDDEN && device_side(place, target, size) ? CUDA_SUCCESS
									    : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check(struct context *context, const struct operation *operation, enum direction direction,
		      bool *pageable)
{
	*pageable = false;
	return operation->type == COPY ? check_copy(operation, direction, pageable)
				       : check_fill(context, operation);
}

// Waits for the operation's turn on the stream, and runs it.
static CUresult run_now(struct stream *stream, const struct operation *operation)
{
	struct context *context = stream->context;
	queue_wait(queue_turn(stream));
	if (context->sticky != CUDA_SUCCESS)
		return context->sticky;
	return operation_execute(context, operation) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void name_devices(struct operation *operation, const struct context *caller)
{
	if (operation->type != COPY)
		return;
	if (operation->copy.target_device == CALLER)
		operation->copy.target_device = caller->device;
	if (operation->copy.source_device == CALLER)
		operation->copy.source_device = caller->device;
}

static CUresult later(struct request request, enum direction direction, CUstream handle)
{
	struct operation *operation = &request.operation;
	struct stream *stream;
	bool pageable;
	TRY(request.refused);
	TRY(stream_resolve(handle, &stream));
	name_devices(operation, current_context() ? current_context() : stream->context);
	TRY(check(stream->context, operation, direction, &pageable));
	// The driver stages pageable memory before it returns; so does the copy here.
	if (pageable && !stream->capture) {
		if (stream->legacy)
			TRY(capture_forbids_legacy(stream->context));
		return run_now(stream, operation);
	}
	return stream_submit(stream, operation);
}

// own: on the thread's own stream, where a synchronous call is the asynchronous one with a wait.
static CUresult now(struct request request, enum direction direction, bool own)
{
	struct operation *operation = &request.operation;
	struct context *context = current_context();
	bool pageable;
	if (own) {
		TRY(later(request, direction, CU_STREAM_PER_THREAD));
		return stream_wait(CU_STREAM_PER_THREAD);
	}
	TRY(request.refused);
	TRY(capture_forbids_legacy(context));
	name_devices(operation, context);
	TRY(check(context, operation, direction, &pageable));
	return run_now(context->legacy, operation);
}

// The context named for each side of the copy must have access to it.
static struct request copy_peer(CUdeviceptr target, CUcontext target_handle, CUdeviceptr source,
				CUcontext source_handle, size_t size)
{
	struct context *target_context = object_find(target_handle, CONTEXT);
	struct context *source_context = object_find(source_handle, CONTEXT);
	struct request request = copy(target, source, size);
	if (!target_context || !source_context)
		return (struct request){.refused = CUDA_ERROR_INVALID_CONTEXT};
	request.operation.copy.target_device = target_context->device;
	request.operation.copy.source_device = source_context->device;
	return request;
}

static struct request copy_2d(const CUDA_MEMCPY2D *parameters)
{
	if (!parameters || parameters->srcArray || parameters->dstArray)
		return (struct request){.refused = parameters ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE};
	uint64_t source = parameters->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)parameters->srcHost
									  : parameters->srcDevice;
	uint64_t target = parameters->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)parameters->dstHost
									  : parameters->dstDevice;
	uint64_t width = parameters->WidthInBytes, height = parameters->Height;
	uint64_t source_pitch = parameters->srcPitch ? parameters->srcPitch : width;
	uint64_t target_pitch = parameters->dstPitch ? parameters->dstPitch : width;
	if (source_pitch < width || target_pitch < width)
		return (struct request){.refused = CUDA_ERROR_INVALID_VALUE};
	target += parameters->dstY * target_pitch + parameters->dstXInBytes;
	source += parameters->srcY * source_pitch + parameters->srcXInBytes;
	return (struct request){
		{.type = COPY, .copy = {target, target_pitch, source, source_pitch, width, height, CALLER, CALLER}},
		CUDA_SUCCESS};
}

static struct request fill_2d(uint64_t target, size_t pitch, unsigned char value, size_t width, size_t height)
{
	if (pitch < width)
		return (struct request){.refused = CUDA_ERROR_INVALID_VALUE};
	return (struct request){{.type = SET, .set = {target, pitch, width, height, value, 1}}, CUDA_SUCCESS};
}

COPY_FUNCTIONS(DEFINE, DEFINE_PTDS, DEFINE_PTSZ)
