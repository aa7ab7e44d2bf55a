// Asynchronous operations wait here, in the order of issue, until something waits for
// them; then they run, and only those that are needed: the stream's own, what its events
// wait for, and what the legacy default stream ties together. No threads: the order and
// the moment of everything is determined, so a missing synchronization always shows.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

enum { LIMIT = 1024 }; // operations in flight before issuing waits, as on a real device

struct queued {
	struct queued *next, *previous;
	uint64_t sequence;
	struct stream *stream;
	struct operation operation;
	bool needed;
	bool poisoned;	 // its memory has been unmapped since it was issued
	uint64_t issued; // sim.next_id then: of a launch, mappings with a higher one are of no use to it
};

static struct queued *head, *tail;
static uint64_t count, last_sequence;
static unsigned pass;
static bool running; // a host function of the queue, the lock given up meanwhile
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;

uint64_t queue_pending(void)
{
	return count;
}

static void unlink_operation(struct queued *queued)
{
	*(queued->previous ? &queued->previous->next : &head) = queued->next;
	*(queued->next ? &queued->next->previous : &tail) = queued->previous;
	count--;
}

void queue_drop(void)
{
	while (head) {
		struct queued *queued = head;
		unlink_operation(queued);
		free(queued);
	}
}

CUresult queue_push(struct stream *stream, const struct operation *operation, uint64_t *sequence)
{
	if (count >= LIMIT)
		queue_wait_all();
	if (stream->context->sticky != CUDA_SUCCESS)
		return stream->context->sticky;
	struct queued *queued = calloc(1, sizeof *queued);
	if (!queued)
		return CUDA_ERROR_OUT_OF_MEMORY;
	queued->sequence = ++last_sequence;
	queued->stream = stream;
	queued->operation = *operation;
	queued->issued = sim.next_id;
	queued->previous = tail;
	*(tail ? &tail->next : &head) = queued;
	tail = queued;
	count++;
	if (sequence)
		*sequence = queued->sequence;
	return CUDA_SUCCESS;
}

static bool blocking(const struct stream *stream)
{
	return !stream->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static void need_stream(struct stream *stream)
{
	stream->mark = pass;
	if (stream->legacy)
		stream->context->mark = pass;
	else if (blocking(stream))
		stream->context->legacy->mark = pass;
}

struct target {
	const struct context *context;
	int device; // -1: any
	uint64_t sequence;
	bool all;
};

static bool targeted(const struct queued *queued, const struct target *target)
{
	const struct context *context = queued->stream->context;
	return target->all || context == target->context || context->device == target->device ||
	       queued->sequence == target->sequence;
}

// One walk backwards finds all that is needed, for an operation depends on earlier ones only.
static void mark(const struct target *target)
{
	for (struct queued *queued = tail; queued; queued = queued->previous) {
		struct stream *stream = queued->stream;
		bool ordered = stream->mark == pass || (blocking(stream) && stream->context->mark == pass);
		if (!queued->needed && !ordered && !targeted(queued, target))
			continue;
		queued->needed = true;
		need_stream(stream);
		if (queued->operation.type != WAIT)
			continue;
		struct queued *record = queued->previous;
		while (record && record->sequence != queued->operation.event.sequence)
			record = record->previous;
		if (record)
			record->needed = true;
	}
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void call_host(const struct queued *queued)
{
	struct thread_state *thread = thread_state();
	running = true;
	thread->in_host_function = true;
	pthread_mutex_unlock(&sim.lock);
	if (queued->operation.type == HOST_FUNCTION)
		queued->operation.host.function(queued->operation.host.data);
	else
		queued->operation.host.callback((CUstream)object_handle(queued->stream), CUDA_SUCCESS,
						queued->operation.host.data);
	pthread_mutex_lock(&sim.lock);
	thread->in_host_function = false;
	running = false;
	pthread_cond_broadcast(&idle);
}

static void execute(const struct queued *queued)
{
	struct context *context = queued->stream->context;
	const struct operation *operation = &queued->operation;
	struct event *event;
	switch (operation->type) {
	case RECORD:
		event = object_find(operation->event.event, EVENT);
		if (event && event->recorded == queued->sequence) {
			event->complete = true;
			event->time = now();
		}
		return;
	case WAIT: return;
	case HOST_FUNCTION:
	case CALLBACK:
		if (context->sticky == CUDA_SUCCESS)
			call_host(queued);
		return;
	case FREE: memory_free(operation->address); return;
	case LAUNCH:
		if (context->sticky == CUDA_SUCCESS)
			context->sticky = operation->launch.emulation->run(
				context, operation->launch.grid, operation->launch.parameters,
				queued->issued);
		return;
	case COPY:
	case SET:
		if (context->sticky == CUDA_SUCCESS &&
		    (queued->poisoned || !operation_execute(context, operation)))
			context->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
		return;
	}
}

// Runs what is marked. Another thread may be in a host function: order forbids overtaking it.
static void run(void)
{
	while (true) {
		while (running)
			pthread_cond_wait(&idle, &sim.lock);
		struct queued *queued = head;
		while (queued && !queued->needed)
			queued = queued->next;
		if (!queued)
			return;
		while (queued && !running) {
			struct queued *next = queued->next;
			enum operation_type type = queued->operation.type;
			if (queued->needed) {
				unlink_operation(queued);
				execute(queued);
				free(queued);
				if (type == HOST_FUNCTION || type == CALLBACK)
					break; // the lock was given up: next may be gone
			}
			queued = next;
		}
	}
}

static void wait_for(const struct target *target)
{
	mark(target);
	run();
}

void queue_wait_stream(struct stream *stream)
{
	pass++;
	stream->mark = pass;
	wait_for(&(struct target){.device = -1});
}

void queue_wait_turn(struct stream *stream)
{
	pass++;
	need_stream(stream);
	wait_for(&(struct target){.device = -1});
}

void queue_wait_context(struct context *context)
{
	pass++;
	wait_for(&(struct target){.context = context, .device = -1});
}

void queue_wait_device(int device)
{
	pass++;
	wait_for(&(struct target){.device = device});
}

void queue_wait_event(uint64_t sequence)
{
	pass++;
	wait_for(&(struct target){.device = -1, .sequence = sequence});
}

void queue_wait_all(void)
{
	pass++;
	wait_for(&(struct target){.device = -1, .all = true});
}

static bool overlaps(uint64_t address, uint64_t size, uint64_t other, uint64_t pitch, uint64_t width,
		     uint64_t height)
{
	return height && address < other + pitch * (height - 1) + width && other < address + size;
}

void queue_poison(uint64_t address, uint64_t size)
{
	for (struct queued *queued = head; queued; queued = queued->next) {
		const struct operation *operation = &queued->operation;
		if (operation->type == COPY)
			queued->poisoned |= overlaps(address, size, operation->copy.target,
						     operation->copy.target_pitch, operation->copy.width,
						     operation->copy.height) ||
					    overlaps(address, size, operation->copy.source,
						     operation->copy.source_pitch, operation->copy.width,
						     operation->copy.height);
		else if (operation->type == SET)
			queued->poisoned |= overlaps(address, size, operation->set.target,
						     operation->set.pitch, operation->set.width,
						     operation->set.height);
	}
}

static bool touchable(struct reach reach, uint64_t address, uint64_t pitch, uint64_t width,
		      uint64_t height, bool write)
{
	uint64_t size = pitch * (height - 1) + width;
	enum place place = memory_place(reach, address, size, write);
	if (place == PLACE_DEVICE && write)
		memory_populate(address, size);
	return place != PLACE_FORBIDDEN;
}

bool operation_execute(struct context *context, const struct operation *operation)
{
	if (operation->type == COPY) {
		uint64_t target = operation->copy.target, source = operation->copy.source,
			 width = operation->copy.width;
		uint64_t target_pitch = operation->copy.target_pitch,
			 source_pitch = operation->copy.source_pitch;
		uint64_t height = operation->copy.height;
		if (!width || !height)
			return true;
		if (!touchable(copy_reach(operation->copy.target_device), target, target_pitch, width, height,
			       true) ||
		    !touchable(copy_reach(operation->copy.source_device), source, source_pitch, width, height,
			       false))
			return false;
		for (uint64_t row = 0; row < height; row++)
			memmove((void *)(target + row * target_pitch), (void *)(source + row * source_pitch),
				width);
		return true;
	}
	uint64_t target = operation->set.target, pitch = operation->set.pitch, width = operation->set.width;
	uint64_t height = operation->set.height;
	uint32_t value = operation->set.value;
	if (!width || !height)
		return true;
	if (!touchable(kernel_reach(context), target, pitch, width, height, true))
		return false;
	for (uint64_t row = 0; row < height; row++) {
		char *start = (char *)(target + row * pitch);
		if (operation->set.element == 1)
			memset(start, (int)value, width);
		else
			for (uint64_t at = 0; at < width; at += operation->set.element)
				memcpy(start + at, &value, operation->set.element);
	}
	return true;
}
