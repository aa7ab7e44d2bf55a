// Copies and fills, checked when they are issued; execution/operation.c checks them again when they run.
#include "entry/gate.h"

// The device of the caller's current context, whatever the stream, as in the driver.
enum { CALLER = -1 };

enum direction { ANY_DIRECTION, TO_DEVICE = 1, FROM_DEVICE = 2, ON_DEVICE = TO_DEVICE | FROM_DEVICE };

struct request {
	struct operation operation;
	CUresult refused; // CUDA_SUCCESS: not refused
};

static struct request copy_rows(struct rows to, struct rows from)
{
	return (struct request){.operation = {.type = COPY, .to = to, .copy = {from, CALLER, CALLER}}};
}

static struct request copy(uint64_t target, uint64_t source, uint64_t size)
{
	return copy_rows((struct rows){target, size, size, 1}, (struct rows){source, size, size, 1});
}

static struct request fill(uint64_t target, uint32_t value, uint32_t element, uint64_t count)
{
	uint64_t size = element * count;
	return (struct request){
		.operation = {.type = SET, .to = {target, size, size, 1}, .set = {value, element}}};
}

// Reports whether it is neither device memory nor pinned host memory, which devices see through unified addressing.
static bool is_pageable(enum place place, const struct rows *rows)
{
	return place != PLACE_DEVICE && !host_pinned(rows->address, rows_size(rows));
}

// The driver takes unmapped addresses for host memory, unless the call says that they are the device's; so it faults.
static void fault_unless(bool on_device, enum place place, uint64_t address)
{
	if (place == PLACE_UNMAPPED && !on_device)
		(void)*(const volatile char *)address;
}

static CUresult check_copy(const struct operation *operation, enum direction direction, bool *pageable)
{
	const struct rows *to = &operation->to, *from = &operation->copy.from;
	if (!rows_size(to))
		return CUDA_SUCCESS;
	enum place target = memory_place(copy_reach(operation->copy.to_device), to->address, rows_size(to), true);
	enum place source = memory_place(copy_reach(operation->copy.from_device), from->address, rows_size(from), false);
	if (target == PLACE_FORBIDDEN || source == PLACE_FORBIDDEN || !to->address || !from->address)
		return CUDA_ERROR_INVALID_VALUE;
	fault_unless(direction & TO_DEVICE, target, to->address);
	fault_unless(direction & FROM_DEVICE, source, from->address);
	bool to_pageable = is_pageable(target, to), from_pageable = is_pageable(source, from);
	if ((direction & TO_DEVICE && to_pageable) || (direction & FROM_DEVICE && from_pageable))
		return CUDA_ERROR_INVALID_VALUE;
	*pageable = to_pageable || from_pageable;
	return CUDA_SUCCESS;
}

static CUresult check_fill(struct context *context, const struct operation *operation)
{
	const struct rows *to = &operation->to;
	if (to->address % operation->set.element)
		return CUDA_ERROR_INVALID_VALUE;
	if (!rows_size(to))
		return CUDA_SUCCESS;
	enum place place = memory_place(kernel_reach(context), to->address, rows_size(to), true);
	return place == PLACE_FORBIDDEN || is_pageable(place, to) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
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
	if (operation->copy.to_device == CALLER)
		operation->copy.to_device = caller->device;
	if (operation->copy.from_device == CALLER)
		operation->copy.from_device = caller->device;
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
	request.operation.copy.to_device = target_context->device;
	request.operation.copy.from_device = source_context->device;
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
	return copy_rows((struct rows){target, target_pitch, width, height},
			 (struct rows){source, source_pitch, width, height});
}

static enum direction direction_2d(const CUDA_MEMCPY2D *parameters)
{
	enum direction direction = ANY_DIRECTION;
	if (parameters && parameters->dstMemoryType == CU_MEMORYTYPE_DEVICE)
		direction |= TO_DEVICE;
	if (parameters && parameters->srcMemoryType == CU_MEMORYTYPE_DEVICE)
		direction |= FROM_DEVICE;
	return direction;
}

COPY_FUNCTIONS(DEFINE, DEFINE_PTDS, DEFINE_PTSZ)
