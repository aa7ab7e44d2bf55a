// Asynchronous operations wait here, in the order of issue, until something waits for them. Then only the needed ones
// run: the stream's own, what its events wait for, and what the legacy default stream ties together. Order and moment
// are deterministic, so a missing synchronization always shows. Only host functions take time. One runs on the thread
// that waits, or on its own if none does; the lock is free during the function, and work that is not ordered behind it
// goes on.
#include <stdlib.h>

#include "execution/execution.h"

enum { LIMIT = 1024 }; // operations in flight before issuing waits, as on a real device

struct queued {
	struct queued *next, *previous;
	uint64_t sequence;
	struct stream *stream;
	struct operation operation;
	unsigned mark;	 // queue pass that needs it
	unsigned held;	 // queue pass that found it held up
	bool running;	 // a host function; it stays in the queue until it has returned
	bool dropped;	 // no longer in the queue: its runner frees it
	bool poisoned;	 // its memory was unmapped after it was issued
	uint64_t issued; // sim.next_id then: a launch has no use for mappings with a higher one
};

static struct queued *head, *tail;
uint64_t queue_count, queue_last;
static unsigned pass;
static pthread_cond_t returned = PTHREAD_COND_INITIALIZER; // a host function has returned

static void unlink_operation(struct queued *queued)
{
	*(queued->previous ? &queued->previous->next : &head) = queued->next;
	*(queued->next ? &queued->next->previous : &tail) = queued->previous;
	queue_count--;
}

void queue_drop(const struct stream *stream)
{
	struct queued *next;
	for (struct queued *queued = head; queued; queued = next) {
		next = queued->next;
		if (stream && queued->stream != stream)
			continue;
		unlink_operation(queued);
		queued->dropped = true;
		if (!queued->running)
			free(queued);
	}
	pthread_cond_broadcast(&returned); // the operations that threads waited for are gone
}

static bool full(const struct stream *stream)
{
	uint64_t own = 0;
	for (const struct queued *queued = head; queued; queued = queued->next)
		own += queued->stream == stream;
	return own >= LIMIT;
}

CUresult queue_push(struct stream *stream, const struct operation *operation, uint64_t *sequence)
{
	if (queue_count >= LIMIT) {
		queue_run_free();
		if (full(stream)) // other streams' work behind a host function is no reason to wait
			queue_wait((struct target){.stream = stream});
	}
	if (stream->context->sticky != CUDA_SUCCESS)
		return stream->context->sticky;
	struct queued *queued = calloc(1, sizeof *queued);
	if (!queued)
		return CUDA_ERROR_OUT_OF_MEMORY;
	queued->sequence = ++queue_last;
	queued->stream = stream;
	queued->operation = *operation;
	queued->issued = sim.next_id;
	queued->previous = tail;
	*(tail ? &tail->next : &head) = queued;
	tail = queued;
	queue_count++;
	if (sequence)
		*sequence = queued->sequence;
	return CUDA_SUCCESS;
}

static bool blocking(const struct stream *stream)
{
	return !stream->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

// The record that an operation waits for, if it has not run.
static struct queued *awaited(const struct queued *queued)
{
	if (queued->operation.type != WAIT)
		return NULL;
	struct queued *record = queued->previous;
	while (record && record->sequence != queued->operation.event.sequence)
		record = record->previous;
	return record;
}

static bool overlaps(uint64_t address, uint64_t size, const struct rows *rows)
{
	uint64_t used = rows_size(rows);
	return used && address < rows->address + used && rows->address < address + size;
}

// Reports whether a copy or fill uses memory of the range.
static bool uses(const struct operation *operation, uint64_t address, uint64_t size)
{
	if (operation->type == COPY && overlaps(address, size, &operation->copy.from))
		return true;
	return (operation->type == COPY || operation->type == SET) && overlaps(address, size, &operation->to);
}

static bool targeted(const struct queued *queued, const struct target *target)
{
	const struct stream *stream = queued->stream;
	const struct context *context = stream->context;
	enum operation_type type = queued->operation.type;
	if (queued->sequence > target->until)
		return false;
	return target->all || stream == target->stream || stream == target->legacy ||
	       context == target->context || (blocking(stream) && context == target->blocking) ||
	       context->device + 1 == target->device || queued->sequence == target->sequence ||
	       (type == FREE && context->device + 1 == target->freed) ||
	       (target->size && (type == LAUNCH || uses(&queued->operation, target->address, target->size)));
}

// One walk backwards finds everything that is needed, because operations depend only on earlier ones.
static void mark(const struct target *target)
{
	pass++;
	for (struct queued *queued = tail; queued; queued = queued->previous) {
		struct stream *stream = queued->stream;
		bool ordered = stream->mark == pass || (blocking(stream) && stream->context->mark == pass);
		if (queued->mark != pass && !ordered && !targeted(queued, target))
			continue;
		queued->mark = pass;
		stream->mark = pass;
		if (stream->legacy)
			stream->context->mark = pass;
		else if (blocking(stream))
			stream->context->legacy->mark = pass;
		struct queued *record = awaited(queued);
		if (record)
			record->mark = pass;
	}
}

// Reports whether it is a running host function, or is ordered behind one. Call it for all earlier operations first.
static bool held_up(const struct queued *queued)
{
	const struct stream *stream = queued->stream;
	const struct queued *record = awaited(queued);
	return queued->running || stream->held == pass || (record && record->held == pass) ||
	       (stream->legacy && stream->context->held == pass) ||
	       (blocking(stream) && stream->context->legacy->held == pass);
}

static void hold(struct queued *queued)
{
	queued->held = pass;
	queued->stream->held = pass;
	if (blocking(queued->stream))
		queued->stream->context->held = pass;
}

static bool calls_host(const struct queued *queued)
{
	enum operation_type type = queued->operation.type;
	return type == HOST_FUNCTION && queued->stream->context->sticky == CUDA_SUCCESS;
}

// Calls the host function of an operation that is marked as running, without the lock.
static void call_host(struct queued *queued)
{
	struct thread_state *thread = thread_state();
	thread->in_host_function = true;
	pthread_mutex_unlock(&sim.lock);
	queued->operation.host.function(queued->operation.host.data);
	pthread_mutex_lock(&sim.lock);
	thread->in_host_function = false;
	if (!queued->dropped)
		unlink_operation(queued);
	free(queued);
	pthread_cond_broadcast(&returned);
}

static void *help(void *queued)
{
	pthread_mutex_lock(&sim.lock);
	if (((struct queued *)queued)->dropped)
		free(queued);
	else
		call_host(queued);
	pthread_mutex_unlock(&sim.lock);
	return NULL;
}

// Starts a thread to call the function. If that fails, the next query tries again.
static void start_helper(struct queued *queued)
{
	pthread_t thread;
	queued->running = !pthread_create(&thread, NULL, help, queued);
	if (queued->running)
		pthread_detach(thread);
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
			event->time = nanoseconds();
		}
		return;
	case WAIT: return;
	case HOST_FUNCTION: return; // not called: the context is lost
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

enum host_functions { CALL, HELP, LEAVE }; // call them here, on a thread of their own, not at all

enum progress { DONE, HELD_UP, CALLED };

// Runs what is needed and not held up, in order. After a host function, everything may have changed.
static enum progress run(const struct target *target, enum host_functions host)
{
	enum progress progress = DONE;
	struct queued *next;
	mark(target);
	for (struct queued *queued = head; queued; queued = next) {
		next = queued->next;
		if (queued->mark != pass)
			continue;
		if (held_up(queued)) {
			hold(queued);
			progress = HELD_UP;
		} else if (!calls_host(queued)) {
			unlink_operation(queued);
			execute(queued);
			free(queued);
		} else if (host == CALL) {
			queued->running = true;
			call_host(queued);
			return CALLED;
		} else {
			if (host == HELP)
				start_helper(queued);
			hold(queued);
			progress = HELD_UP;
		}
	}
	return progress;
}

void queue_wait(struct target target)
{
	enum progress progress;
	target.until = target.until ? target.until : queue_last;
	while ((progress = run(&target, CALL)) != DONE)
		if (progress == HELD_UP)
			pthread_cond_wait(&returned, &sim.lock);
}

bool queue_done(struct target target)
{
	target.until = target.until ? target.until : queue_last;
	return run(&target, HELP) == DONE;
}

struct target queue_turn(const struct stream *stream)
{
	return (struct target){.stream = stream,
			       .legacy = blocking(stream) ? stream->context->legacy : NULL,
			       .blocking = stream->legacy ? stream->context : NULL};
}

void queue_run_free(void)
{
	run(&(struct target){.until = queue_last, .all = true}, LEAVE);
}

void queue_poison(uint64_t address, uint64_t size)
{
	for (struct queued *queued = head; queued; queued = queued->next)
		queued->poisoned |= uses(&queued->operation, address, size);
}
