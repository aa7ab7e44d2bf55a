// Contexts: how they are made and found, and what ends with one. The entry points keep each thread's stack of them.
#include "execution/execution.h"

// The C library ends a process that has no memory left for other thread-local data, at the thread's first call.
struct thread_state *thread_state(void)
{
	static _Thread_local struct thread_state state __attribute__((tls_model("initial-exec")));
	if (state.epoch != sim.epoch)
		state = (struct thread_state){.epoch = sim.epoch, .in_host_function = state.in_host_function};
	return &state;
}

struct context *current_context(void)
{
	struct thread_state *thread = thread_state();
	return thread->depth ? object_find((void *)thread->stack[thread->depth - 1], CONTEXT) : NULL;
}

CUresult context_health(void)
{
	if (!thread_state()->depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	struct context *context = current_context();
	return context ? context->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_new(int device, uint64_t handle, struct context **result)
{
	struct context *context = object_new_at(CONTEXT, sizeof *context, handle);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->device = device;
	context->legacy = stream_default(context);
	if (!context->legacy || !budget_take(device, sim.settings.context)) {
		if (context->legacy)
			streams_forget_context(context);
		object_delete(&context->object);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*result = context;
	return CUDA_SUCCESS;
}

static void events_forget_context(struct context *context)
{
	struct event *event;
	for (uint64_t cursor = 0; (event = object_next(EVENT, &cursor));)
		if (event->context == context)
			object_delete(&event->object);
}

void context_delete(struct context *context)
{
	queue_wait((struct target){.context = context});
	streams_forget_context(context);
	events_forget_context(context);
	functions_forget(context);
	memory_forget_context(context->object.node.key);
	host_forget_context(context->object.node.key);
	budget_give(context->device, sim.settings.context);
	object_delete(&context->object);
}

struct reach kernel_reach(const struct context *context)
{
	return (struct reach){context->device, context->peers | 1u << context->device};
}
