/* repeat has what lets the steps of a program free and allocate in the order of a stream without Go: allocations that
 * the engine offers (vmm/ordered.go). A free records an offer's event. The next allocation of the same request on that
 * stream may have the memory at once, because what that stream does next comes after all that used the memory before.
 * The engine takes offers back whenever it needs to know.
 *
 * There is no lock, which a fork, a signal's handler or a stopped thread could hold: each step is one exchange of an
 * offer's state, and a thread that comes too late goes to the engine. */
#include "shim.h"
#include "forward.h"

/* Only the engine, which holds its own lock, fills in an offer, and only an empty one. A state's higher bits count how
 * often it was, so an exchange fails if the offer is another by then. */
enum state {
	EMPTY,
	LIVE,	   /* the allocation is the program's */
	RECORDING, /* a thread of the program frees it */
	FREED,
	RECALLED,  /* the engine wanted it while RECORDING: that thread leaves it to the engine */
	SPENT,	   /* and has left it */
	STATES = 8
};

enum { WAYS = 16, SETS = 64, OFFERS = WAYS * SETS, ADDRESSES = 4 * OFFERS };

/* Threads read an offer while the engine may fill it in, and the exchange then tells. */
#define SHARED(type) _Atomic(type)
#define GET(of) atomic_load_explicit(&(of), memory_order_relaxed)
#define SET(of, value) atomic_store_explicit(&(of), value, memory_order_relaxed)
static struct offer {
	SHARED(uint64_t) state;
	SHARED(uintptr_t) address;
	SHARED(uint64_t) stream_id;
	SHARED(size_t) size;
	SHARED(void *) stream;
	SHARED(void *) context;
	SHARED(const char *) tag;
	SHARED(int) kind;
	SHARED(int) device;
	SHARED(void *) event;
} offers[OFFERS];
static SHARED(uint16_t) by_address[ADDRESSES]; /* the last that was offered there, which may be over */
static SHARED(int) offered;		       /* how many are not empty */

static size_t mixed(uint64_t of)
{
	return (size_t)((of * 0x9e3779b97f4a7c15u) >> 40);
}

/* Where an offer's number is, by its address: all are aligned to 512 bytes. */
static SHARED(uint16_t) *place_of(uintptr_t address)
{
	return &by_address[mixed(address >> 9) % ADDRESSES];
}

static struct offer *set_of(const struct repeat_request *request, uint64_t stream_id)
{
	return &offers[mixed(request->size ^ stream_id << 40 ^ (uintptr_t)request->settings.tag << 8) % SETS * WAYS];
}

static int kind_of(const struct region_settings *settings)
{
	return settings->backup << 2 | settings->incremental << 1 | settings->mmap;
}

static enum state state_of(uint64_t state)
{
	return (enum state)(state % STATES);
}

/* Exchanges the state that was read, expected, for another. */
static bool becomes(struct offer *of, uint64_t expected, enum state next)
{
	return atomic_compare_exchange_strong(&of->state, &expected, expected / STATES * STATES + next);
}

static bool fits(const struct offer *of, const struct repeat_request *request, uint64_t stream_id)
{
	return GET(of->stream_id) == stream_id && GET(of->size) == request->size && GET(of->tag) == request->settings.tag &&
	       GET(of->kind) == kind_of(&request->settings) && GET(of->device) == request->device &&
	       GET(of->context) == request->context && GET(of->stream) == request->stream;
}

/* A default stream is another one in each context, so the context is the same. */
HIDDEN void *repeat_malloc(struct repeat_request *request)
{
	unsigned long long stream_id = 0;
	if (go_now() != GO_AWAKE || gate_before_allocation() != SUCCESS ||
	    forward_cuCtxGetCurrent(&request->context) != SUCCESS || !request->context || GET(offered) == 0 ||
	    forward_cuStreamGetId(request->stream, &stream_id) != SUCCESS)
		return NULL;
	struct offer *set = set_of(request, stream_id);
	for (int i = 0; i < WAYS; i++) {
		uint64_t state = atomic_load(&set[i].state);
		if (state_of(state) != FREED || !fits(&set[i], request, stream_id))
			continue;
		void *address = (void *)GET(set[i].address);
		if (becomes(&set[i], state, LIVE))
			return address;
	}
	return NULL;
}

/* A stream that the program has made is known by its handle. If the handle belongs to another stream by now, the free
 * is in the order of that stream, whose event it records, and the first stream is gone. A default stream is another one
 * in each context. */
static bool is_stream_of(const struct offer *of, void *stream)
{
	unsigned long long stream_id = 0;
	void *context = NULL;
	if (GET(of->stream) != stream || (uintptr_t)stream > (uintptr_t)PER_THREAD_STREAM)
		return GET(of->stream) == stream;
	return forward_cuStreamGetId(stream, &stream_id) == SUCCESS && GET(of->stream_id) == stream_id &&
	       forward_cuCtxGetCurrent(&context) == SUCCESS && GET(of->context) == context;
}

HIDDEN bool repeat_free(void *pointer, void *stream)
{
	if (go_now() != GO_AWAKE || GET(offered) == 0)
		return false;
	struct offer *of = &offers[GET(*place_of((uintptr_t)pointer))];
	uint64_t state = atomic_load(&of->state);
	if (state_of(state) != LIVE || GET(of->address) != (uintptr_t)pointer || !is_stream_of(of, stream) ||
	    !becomes(of, state, RECORDING))
		return false;
	state = state / STATES * STATES + RECORDING;
	if (forward_cuEventRecord(GET(of->event), stream) != SUCCESS) {
		if (becomes(of, state, LIVE))
			return false; /* the engine gets the error again, with a text */
	} else if (becomes(of, state, FREED)) {
		return true;
	}
	atomic_store(&of->state, state / STATES * STATES + SPENT);
	return false;
}

HIDDEN int repeat_offer(const struct repeat_request *request, uintptr_t address, uint64_t stream_id, uintptr_t event)
{
	struct offer *of = set_of(request, stream_id);
	int ways = WAYS;
	for (; ways > 0 && state_of(atomic_load(&of->state)) != EMPTY; ways--)
		of++;
	if (ways == 0)
		return -1;
	SET(of->address, address);
	SET(of->stream_id, stream_id);
	SET(of->size, request->size);
	SET(of->stream, request->stream);
	SET(of->context, request->context);
	SET(of->tag, request->settings.tag);
	SET(of->kind, kind_of(&request->settings));
	SET(of->device, request->device);
	SET(of->event, (void *)event);
	int number = (int)(of - offers);
	SET(*place_of(address), (uint16_t)number);
	atomic_fetch_add(&offered, 1);
	atomic_store(&of->state, (atomic_load(&of->state) / STATES + 1) * STATES + LIVE);
	return number;
}

static int emptied(struct offer *of, uint64_t state, int taken)
{
	if (!becomes(of, state, EMPTY))
		return -1;
	atomic_fetch_sub(&offered, 1);
	return taken;
}

HIDDEN int repeat_take(int offer, bool if_freed)
{
	struct offer *of = &offers[offer];
	for (int taken;;) {
		uint64_t state = atomic_load(&of->state);
		switch (state_of(state)) {
		case FREED:
			taken = emptied(of, state, REPEAT_FREED);
			break;
		case SPENT:
			taken = emptied(of, state, REPEAT_LIVE);
			break;
		case LIVE:
			taken = if_freed ? REPEAT_KEPT : emptied(of, state, REPEAT_LIVE);
			break;
		case RECORDING:
			taken = if_freed ? REPEAT_KEPT : becomes(of, state, RECALLED) ? REPEAT_LATER : -1;
			break;
		default:
			taken = REPEAT_LATER;
		}
		if (taken >= 0)
			return taken;
	}
}
