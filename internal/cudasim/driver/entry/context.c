// The primary context of each device, created ones, and each thread's stack of them. What a context is made of:
// execution/context.c.
#include <string.h>

#include "entry/gate.h"

static struct primary {
	struct context *context; // NULL: there is none now
	uint64_t handle;	 // stays over resets of the context, as the real one does
	int references;
	unsigned flags;
} primaries[MAX_DEVICES];

void primaries_reset(void)
{
	memset(primaries, 0, sizeof primaries);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice index)
{
	ENTER(cuDevicePrimaryCtxRetain);
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(index))
		return CUDA_ERROR_INVALID_DEVICE;
	struct primary *primary = &primaries[index];
	if (!primary->handle)
		primary->handle = object_new_handle();
	if (!primary->context)
		TRY(context_new(index, primary->flags, primary->handle, &primary->context));
	primary->references++;
	*context = object_handle(primary->context);
	return CUDA_SUCCESS;
}

static void primary_delete(struct primary *primary)
{
	struct context *context = primary->context;
	primary->context = NULL;
	if (context)
		context_delete(context);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice index)
{
	ENTER(cuDevicePrimaryCtxRelease_v2);
	if (!device_valid(index))
		return CUDA_ERROR_INVALID_DEVICE;
	struct primary *primary = &primaries[index];
	if (!primary->references)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--primary->references == 0)
		primary_delete(primary);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice index)
{
	ENTER(cuDevicePrimaryCtxReset_v2);
	if (!device_valid(index))
		return CUDA_ERROR_INVALID_DEVICE;
	primaries[index].references = 0;
	primary_delete(&primaries[index]);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice index, unsigned flags)
{
	ENTER(cuDevicePrimaryCtxSetFlags_v2);
	if (!device_valid(index))
		return CUDA_ERROR_INVALID_DEVICE;
	primaries[index].flags = flags;
	if (primaries[index].context)
		primaries[index].context->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned *flags, int *active)
{
	ENTER(cuDevicePrimaryCtxGetState);
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(index))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = primaries[index].flags;
	*active = primaries[index].context != NULL;
	return CUDA_SUCCESS;
}

static CUresult push(uint64_t handle)
{
	struct thread_state *thread = thread_state();
	if (thread->depth == CONTEXT_STACK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	thread->stack[thread->depth++] = handle;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *result, unsigned flags, CUdevice device)
{
	if (!result)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	struct context *context;
	TRY(context_new(device, flags, object_new_handle(), &context));
	*result = object_handle(context);
	return push(context->object.node.key);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	ENTER(cuCtxCreate_v2);
	return create(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
	ENTER(cuCtxCreate_v4);
	if (params && (params->execAffinityParams || params->cigParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
	ENTER(cuCtxDestroy_v2);
	struct context *context = object_find(handle, CONTEXT);
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (primaries[context->device].context == context)
		return CUDA_ERROR_INVALID_CONTEXT; // released, not destroyed
	struct thread_state *thread = thread_state();
	if (current_context() == context)
		thread->depth--;
	context_delete(context);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	ENTER(cuCtxGetCurrent);
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	struct thread_state *thread = thread_state();
	*context = thread->depth ? (CUcontext)thread->stack[thread->depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
	ENTER(cuCtxSetCurrent);
	struct thread_state *thread = thread_state();
	if (!handle) {
		thread->depth -= thread->depth > 0;
		return CUDA_SUCCESS;
	}
	if (!object_find(handle, CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!thread->depth)
		return push((uint64_t)handle);
	thread->stack[thread->depth - 1] = (uint64_t)handle;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	ENTER(cuCtxPushCurrent_v2);
	if (!object_find(handle, CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	return push((uint64_t)handle);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER(cuCtxPopCurrent_v2);
	struct thread_state *thread = thread_state();
	if (!thread->depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	thread->depth--;
	if (context)
		*context = (CUcontext)thread->stack[thread->depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER(cuCtxGetDevice);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	struct context *context = current_context();
	if (!context)
		return thread_state()->depth ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned *flags)
{
	ENTER(cuCtxGetFlags);
	struct context *context = current_context();
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER(cuCtxGetStreamPriorityRange);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize);
	struct context *context = current_context();
	TRY(capture_forbids_context(context));
	queue_wait_context(context);
	return context->sticky;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	ENTER(cuCtxEnablePeerAccess);
	struct context *context = current_context(), *other = object_find(peer, CONTEXT);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!other)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!peers(context->device, other->device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (context->peers >> other->device & 1)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	context->peers |= 1u << other->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	ENTER(cuCtxDisablePeerAccess);
	struct context *context = current_context(), *other = object_find(peer, CONTEXT);
	if (!other)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!(context->peers >> other->device & 1))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	context->peers &= ~(1u << other->device);
	return CUDA_SUCCESS;
}
