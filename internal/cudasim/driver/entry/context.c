// The primary context of each device, created ones, and each thread's stack of them. execution/context.c makes them.
#include <string.h>

#include "entry/gate.h"

static struct primary {
	struct context *context; // NULL: there is none now
	uint64_t handle;	 // stays over resets of the context, as the real one does
	int references;
} primaries[MAX_DEVICES];

void primaries_reset(void)
{
	memset(primaries, 0, sizeof primaries);
}

static CUresult retain(CUcontext *context, CUdevice index)
{
	TRY(device_check(index, context));
	struct primary *primary = &primaries[index];
	if (!primary->handle)
		primary->handle = object_new_handle();
	if (!primary->context)
		TRY(context_new(index, primary->handle, &primary->context));
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

static CUresult release(CUdevice index)
{
	if (!device_valid(index))
		return CUDA_ERROR_INVALID_DEVICE;
	struct primary *primary = &primaries[index];
	if (!primary->references)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--primary->references == 0)
		primary_delete(primary);
	return CUDA_SUCCESS;
}

static CUresult reset(CUdevice index)
{
	if (!device_valid(index))
		return CUDA_ERROR_INVALID_DEVICE;
	primary_delete(&primaries[index]); // references stay (seen on driver 580)
	return CUDA_SUCCESS;
}

static CUresult state_of(CUdevice index, unsigned *flags, int *active)
{
	TRY(device_check(index, flags ? active : NULL));
	*flags = 0;
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

// Reports whether a thread can enter a context: it can even enter a primary one that is gone, where its calls then fail
// with 709 (seen on driver 580).
static bool enterable(CUcontext context)
{
	bool found = object_find(context, CONTEXT);
	for (int i = 0; i < MAX_DEVICES; i++)
		found |= context && (uint64_t)context == primaries[i].handle;
	return found;
}

static CUresult create(CUcontext *result, const CUctxCreateParams *params, CUdevice device)
{
	struct context *context;
	if (params && (params->execAffinityParams || params->cigParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	TRY(device_check(device, result));
	TRY(context_new(device, object_new_handle(), &context));
	*result = object_handle(context);
	return push(context->object.node.key);
}

static CUresult destroy(CUcontext handle)
{
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

static CUcontext current_handle(void)
{
	struct thread_state *thread = thread_state();
	return thread->depth ? (CUcontext)thread->stack[thread->depth - 1] : NULL;
}

static CUresult set_current(CUcontext handle)
{
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

static CUresult pop(CUcontext *context)
{
	struct thread_state *thread = thread_state();
	if (!thread->depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	thread->depth--;
	if (context)
		*context = (CUcontext)thread->stack[thread->depth];
	return CUDA_SUCCESS;
}

static CUresult device_of_current(CUdevice *device)
{
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	struct context *context = current_context();
	if (!context)
		return thread_state()->depth ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

static CUresult synchronize(void)
{
	struct context *context = current_context();
	TRY(capture_forbids_context(context));
	queue_wait((struct target){.context = context});
	return context->sticky;
}

static CUresult enable_peer(CUcontext peer, unsigned flags)
{
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

CONTEXT_FUNCTIONS(DEFINE)
