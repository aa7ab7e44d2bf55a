/* capture knows when nothing may synchronize: waiting for a device while one of its streams is being captured into a
 * graph breaks the capture. It keeps the set of streams in which captures began; streams that join a capture need no
 * entry, because only the first can end it. The engine keeps the frees that wait for the end of captures. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"
#include "gate/reach/gate.h"
#include "words.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

HIDDEN int captures; /* slots that are not FREE */

/* Slots are reused and never freed, so there is no lock that a fork could leave held. state is 4 * how often the slot
 * has been used + one of the below. */
enum { FREE, BEGINNING, CAPTURED };
struct slot {
	struct slot *next;
	_Atomic uint64_t state;
	/* For CAPTURED. */
	_Atomic(void *) stream, context;
	_Atomic(const void *) thread; /* for a per-thread stream, which is a different one in each thread */
};
static _Atomic(struct slot *) slots;

/* An entry as it was found. If another thread has changed the slot since, it is left alone. */
struct entry {
	struct slot *slot; /* or NULL */
	uint64_t state;
};

static struct entry enter(void)
{
	for (struct slot *slot = atomic_load(&slots); slot; slot = slot->next) {
		uint64_t state = atomic_load(&slot->state);
		if (state % 4 == FREE && atomic_compare_exchange_strong(&slot->state, &state, state + BEGINNING)) {
			__atomic_fetch_add(&captures, 1, __ATOMIC_SEQ_CST);
			return (struct entry){slot, state + BEGINNING};
		}
	}
	struct slot *slot = calloc(1, sizeof *slot);
	if (!slot)
		return (struct entry){NULL, 0};
	atomic_init(&slot->state, BEGINNING);
	__atomic_fetch_add(&captures, 1, __ATOMIC_SEQ_CST);
	slot->next = atomic_load(&slots);
	while (!atomic_compare_exchange_weak(&slots, &slot->next, slot))
		;
	return (struct entry){slot, BEGINNING};
}

/* Frees that waited for the last capture are made now. */
static void leave(struct entry entry)
{
	if (!entry.slot || !atomic_compare_exchange_strong(&entry.slot->state, &entry.state, (entry.state | 3) + 1) ||
	    __atomic_fetch_sub(&captures, 1, __ATOMIC_SEQ_CST) != 1 || go_now() != GO_AWAKE)
		return;
	(void)IN_GO((tmsCaptureEnded(), SUCCESS));
}

static void *context_of(void *stream)
{
	void *context = NULL;
	return forward_cuStreamGetCtx(stream, &context) == SUCCESS ? context : NULL;
}

static struct entry find(void *stream)
{
	const void *thread = stream == PER_THREAD_STREAM ? &region_thread : NULL;
	void *context = thread ? context_of(stream) : NULL;
	for (struct slot *slot = atomic_load(&slots); slot; slot = slot->next) {
		uint64_t state = atomic_load(&slot->state);
		if (state % 4 == CAPTURED && atomic_load(&slot->stream) == stream &&
		    (!thread || (atomic_load(&slot->thread) == thread && atomic_load(&slot->context) == context)))
			return (struct entry){slot, state};
	}
	return (struct entry){NULL, 0};
}

static int no_memory(void)
{
	return error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to note that a stream is being captured");
}

static int began(struct entry entry, void *stream, int code)
{
	if (code != SUCCESS) {
		leave(entry);
		return code;
	}
	leave(find(stream)); /* an old entry of the stream, whose end went unseen with its context's */
	atomic_store(&entry.slot->stream, stream);
	atomic_store(&entry.slot->context, context_of(stream));
	atomic_store(&entry.slot->thread, stream == PER_THREAD_STREAM ? &region_thread : NULL);
	atomic_store(&entry.slot->state, entry.state - BEGINNING + CAPTURED);
	return code;
}

/* A capture can end by failing, and a failed end can leave it going: the driver knows. */
static int ended(struct entry entry, void *stream, int code)
{
	int status = 0;
	if (code == SUCCESS || !entry.slot || forward_cuStreamIsCapturing(stream, &status) != SUCCESS || status == 0)
		leave(entry);
	return code;
}

HIDDEN void captures_forget(const void *context)
{
	for (struct slot *slot = atomic_load(&slots); slot; slot = slot->next) {
		uint64_t state = atomic_load(&slot->state);
		if (state % 4 == CAPTURED && atomic_load(&slot->context) == context)
			leave((struct entry){slot, state});
	}
}

/* cuCtxRecordEvent would break a capture, so it is called while none can begin: either the thread that begins one sees
 * that captures are prevented, or the other thread sees its entry. */
static _Atomic int prevented;

HIDDEN bool captures_prevent(void)
{
	atomic_fetch_add(&prevented, 1);
	if (!capturing())
		return true;
	captures_allow();
	return false;
}

HIDDEN void captures_allow(void)
{
	atomic_fetch_sub(&prevented, 1);
}

/* Waits a microsecond as a rule. It gives up where the driver is slow, or a fork has lost the thread that
 * prevents captures: a capture that goes on may break, but one that waits forever hangs its program. */
static void await_allowed(void)
{
	enum { LOOKS = 10000, EACH = 10000 /* ns, and what the kernel adds: half a second in all */ };
	for (int i = 0; atomic_load(&prevented) > 0 && i < LOOKS; i++)
		nanosleep(&(struct timespec){.tv_nsec = EACH}, NULL);
}

/* The stream that a function means by its first argument. */
static void *meant(const char *function, uintptr_t stream)
{
	return strstr(function, "_ptsz") ? own_stream((void *)stream) : (void *)stream;
}

/* A capture has its entry before it begins, so that a thread that asks at that moment finds it. */
#define CAPTURES(symbol, count, ...)                                                                 \
	EXPORT int symbol(PARAMETERS_##count(__VA_ARGS__))                                           \
	{                                                                                          \
		static const struct gate_call call = {.name = #symbol, .kind = CAPTURE};             \
		void *stream = meant(#symbol, a);                                                    \
		struct gate_mark *mark = gate_enter_capture(&call, stream);                        \
		struct entry entry = enter();                                                      \
		await_allowed();                                                                       \
		int code = entry.slot ? began(entry, stream, forward_##symbol(PASS_##count))    \
					: RESULT_OF_ANY(#symbol, no_memory());             \
		gate_leave_capture(mark);                                                          \
		return code;                                                                       \
	}
#define N(since, ...) CAPTURES(__VA_ARGS__)
FORWARD_CAPTURES(CAPTURES, N)
#undef N

#define ENDS(name, count, ...)                                                                     \
	EXPORT int name(PARAMETERS_##count(__VA_ARGS__))                                           \
	{                                                                                          \
		void *stream = meant(#name, a);                                                    \
		struct entry entry = find(stream);                                                 \
		return ended(entry, stream, forward_##name(PASS_##count));                         \
	}
#define N(since, ...) ENDS(__VA_ARGS__)
FORWARD_CAPTURE_ENDS(ENDS, N)

/* Destroying a stream ends its capture. */
#define DESTROYS(name)                                                                             \
	EXPORT int name(void *stream)                                                              \
	{                                                                                          \
		if (likely(!capturing()))                                                          \
			return forward_##name(stream);                                             \
		struct entry entry = find(stream);                                                 \
		int code = forward_##name(stream);                                                 \
		if (code == SUCCESS)                                                               \
			leave(entry);                                                              \
		return code;                                                                       \
	}
DESTROYS(cudaStreamDestroy)
DESTROYS(cuStreamDestroy_v2)
