/* calls has the functions that stand in front of the driver's and pass the gate. The loader binds them, dlsym finds
 * them (reach.c asks here), or cuGetProcAddress returns them. Where libtms.so has a function of the same name, that one
 * is called first, and comes here by the loader's order when it goes on to CUDA. */
#define _GNU_SOURCE
#include "nccl.h"
#include "calls.h"
#include "names.h"
#include "../../../forward/symbols.h"
#include "../../../forward/words.h"

/* cudaErrorSharedObjectSymbolNotFound, OUT_OF_MEMORY, ILLEGAL_STATE, INVALID_VALUE */
enum { NOT_FOUND = 302, NO_MEMORY = 2, PAUSED = 401, INVALID = 1, TRIES = 3 };

enum {
#define X(symbol, ...) AT_##symbol,
	GATED_CALLS(X)
#undef X
		CALLS
};
static struct gate_call calls[CALLS];
/* The same functions as another library's dlsym answers, where that is not what the loader binds a call to. */
static struct gate_call asked[CALLS];

#define NOT_STOPPED(kind) ((kind) == LEND || (kind) == PASS)

/* Calls that may be made again take the whole way, because the short one keeps no arguments. */
static void *keep(struct gate_call *call, void *real)
{
	void *none = NULL;
	if (!atomic_compare_exchange_strong(&call->found, &none, real))
		real = none;
	if (!call->again || !reach_room())
		atomic_store(&call->real, real);
	return real;
}

/* Looks all functions up that can be found now: at a later first call the loader's lock may not be free. */
static void resolve(void)
{
	static _Atomic bool done;
	struct range last = {0};
	if (atomic_load(&done))
		return;
	bool is_loaded = reach_in_driver("cuInit") != NULL;
	for (struct gate_call *call = calls; call < calls + CALLS; call++) {
		void *real = atomic_load(&call->found) ? NULL : reach_look(call->name);
		if (real)
			keep(call, kept_with(real, &last));
	}
	dlerror(); /* which the program would take for its own */
	atomic_store(&done, is_loaded);
}

static void *real_of(struct gate_call *call)
{
	if (unlikely(!atomic_load_explicit(&call->found, memory_order_relaxed)))
		resolve();
	return atomic_load_explicit(&call->found, memory_order_relaxed);
}

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Reports whether a call that found too little memory is worth another try, because other processes have made room
 * since. In the middle of another call the thread may not wait for them, because the process could then not make room
 * itself. */
static bool makes_room(enum gate_room of, uintptr_t argument)
{
	const struct gate_mark *mine = gate_mine;
	make_room *room = reach_room();
	if (!room || (mine && atomic_load_explicit(&mine->inside, memory_order_relaxed) != OUT) || inside_nccl())
		return false;
	return room(of == DEVICE ? (int)argument : -1, of == BYTES ? argument : 0);
}

/* The ways in and out for a kind, which is known at compile time. The mark is NULL where the short way in does not
 * suffice, and NO_MARK where there was no memory for a mark. */
static struct gate_mark none; /* of a call that the gate does not stop */

ALWAYS_INLINE struct gate_poll try(enum gate_kind kind, const struct gate_call *call, uintptr_t stream)
{
	if (kind == POLL)
		return gate_try_poll(call);
	if (NOT_STOPPED(kind))
		return (struct gate_poll){&none, NULL};
	return (struct gate_poll){kind == WORK ? gate_try(call, stream) : NULL, NULL};
}

ALWAYS_INLINE struct gate_poll enter(enum gate_kind kind, const struct gate_call *call, uintptr_t stream)
{
	if (NOT_STOPPED(kind))
		return (struct gate_poll){&none, NULL};
	if (kind != POLL)
		return (struct gate_poll){gate_enter(call, stream), NULL};
	struct gate_poll poll = gate_enter_poll(call);
	return poll.mark ? poll : (struct gate_poll){NO_MARK, NULL};
}

ALWAYS_INLINE void leave(enum gate_kind kind, struct gate_poll way, const struct gate_call *call, int code)
{
	if (kind == POLL)
		gate_leave_poll(way);
	else if (!NOT_STOPPED(kind))
		gate_leave(way.mark);
	if (kind == WORK && unlikely(code == INVALID))
		reach_refused(call->name);
}

/* Each argument is passed on as the word that it came as. The whole way through the gate is a function of its own with
 * the same parameters, so that the short one can jump there and need not save the arguments. */
#define WHOLE_WAY(function, call_of, words, stream, kind, room, argument)                                  \
	static __attribute__((noinline, cold)) int function(WORDS_##words)                                 \
	{                                                                                                  \
		struct gate_call *call = call_of;                                                          \
		int (*real)(WORDS_##words) = (int (*)(WORDS_##words))real_of(call);                        \
		if (!real)                                                                                 \
			return NOT_FOUND;                                                                  \
		for (int tries = 1;; tries++) {                                                            \
			struct gate_poll way = enter(kind, call, stream);                                  \
			if (way.mark == NO_MARK)                                                           \
				return NO_MEMORY;                                                          \
			if (way.mark == REFUSED)                                                           \
				return PAUSED;                                                             \
			int code = real(PASS_##words);                                                     \
			leave(kind, way, call, code);                                                      \
			if (room == NEVER || code != NO_MEMORY || tries == TRIES || !makes_room(room, argument)) \
				return code;                                                               \
		}                                                                                          \
	}
#define GATED(symbol, words, stream, kind, room, argument, since)                                          \
	WHOLE_WAY(slowly_##symbol, &calls[AT_##symbol], words, stream, kind, room, argument)               \
	WHOLE_WAY(asked_##symbol, &asked[AT_##symbol], words, stream, kind, room, argument)                \
	EXPORT int symbol(WORDS_##words)                                                                   \
	{                                                                                                  \
		struct gate_call *call = &calls[AT_##symbol];                                              \
		int (*real)(WORDS_##words) =                                                               \
			(int (*)(WORDS_##words))atomic_load_explicit(&call->real, memory_order_relaxed);   \
		struct gate_poll way;                                                                      \
		if (unlikely(!real) || unlikely(!(way = try(kind, call, stream)).mark))                    \
			return slowly_##symbol(PASS_##words);                                              \
		int code = real(PASS_##words);                                                             \
		leave(kind, way, call, code);                                                              \
		return code;                                                                               \
	}
GATED_CALLS(GATED)

static struct gate_call calls[CALLS] = {
#define X(symbol, words, stream, kind, room, argument, since) {#symbol, kind, room != NEVER, NULL, NULL},
	GATED_CALLS(X)
#undef X
};
static struct gate_call asked[CALLS] = {
#define X(symbol, words, stream, kind, room, argument, since) {#symbol, kind, room != NEVER, NULL, NULL},
	GATED_CALLS(X)
#undef X
};
static const struct named names[] = {
#define X(symbol, words, stream, kind, room, argument, since) {#symbol, since, (void *)symbol},
	GATED_CALLS(X)
#undef X
};
static void *const asked_entries[] = {
#define X(symbol, ...) (void *)asked_##symbol,
	GATED_CALLS(X)
#undef X
};

/* Returns the entry that goes on to real: that of the calls which the loader binds, unless another library's dlsym
 * answers with a function of its own that those calls pass by. */
static void *entry_of(struct gate_call *call, void *real)
{
	const size_t at = call - calls;
	if (real == names[at].ours || real == asked_entries[at])
		return real;
	void *bound = reach_is_hooked() ? real_of(call) : NULL;
	if (bound && real != bound) {
		if (!atomic_load(&asked[at].found))
			keep(&asked[at], kept(real));
		return asked_entries[at];
	}
	if (!atomic_load(&call->found))
		keep(call, kept(real));
	return (void *)names[at].ours;
}

static struct gate_call *find(const char *symbol)
{
	for (struct gate_call *call = calls; call < calls + CALLS; call++)
		if (strcmp(call->name, symbol) == 0)
			return call;
	return NULL;
}

HIDDEN bool gate_polls(const char *symbol)
{
	const struct gate_call *call = find(symbol);
	return call && call->kind == POLL;
}

/* A function that the program was given and that does not pass the gate, because it is newer than calls.h. */
static char unknown[64];
static atomic_flag unknown_taken = ATOMIC_FLAG_INIT;
static _Atomic bool unknown_set;

/* Notes a function of this name and CUDA version. With version 0 the name is a symbol. */
static void note_unknown(const char *name, int version)
{
	if (atomic_flag_test_and_set(&unknown_taken))
		return;
	snprintf(unknown, sizeof unknown, version ? "%.40s of CUDA %d.%d" : "%.60s", name, version / 1000,
		 version % 1000 / 10);
	atomic_store(&unknown_set, true);
}

/* Reports whether the table has a version of a function that the gate stops, of these kinds. */
static bool has_version(const char *symbol, enum gate_kind last)
{
	for (struct gate_call *call = calls; call < calls + CALLS; call++)
		if (call->kind <= last && has_name(call->name, symbol, name_length(symbol)))
			return true;
	return false;
}

/* Reports whether the table has other versions of a function that a pause stops, but not this one. */
static bool is_unknown(const char *symbol)
{
	return !find(symbol) && has_version(symbol, LEND);
}

HIDDEN void *calls_entry(const char *symbol, void *theirs)
{
	struct gate_call *call = find(symbol);
	if (call)
		return entry_of(call, theirs);
	if (is_unknown(symbol))
		note_unknown(symbol, 0);
	return NULL;
}

/* The loader binds calls without asking this library, but each library lists the symbols that it refers to. */
struct bound {
	unsigned long long looked_at; /* how many libraries had ever been loaded */
	bool all;		      /* of these */
	size_t skip;
	char symbol[64];
};

static int look_at_bound(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct bound *bound = data;
	struct symbols symbols;
	if (!bound->all && bound->looked_at == info->dlpi_adds)
		return 0;
	bound->all = true, bound->looked_at = info->dlpi_adds;
	read_symbols(info->dlpi_addr, dynamic_of(info), &symbols);
	if (!symbols.table || !symbols.names)
		return 0;
	for (int which = 0; which < 2; which++) {
		const ElfW(Rela) *end = symbols.bound[which].first + symbols.bound[which].count;
		for (const ElfW(Rela) *r = symbols.bound[which].first; r < end; r++) {
			const ElfW(Sym) *symbol = &symbols.table[ELF64_R_SYM(r->r_info)];
			const char *name = symbols.names + symbol->st_name;
			if (symbol->st_shndx != SHN_UNDEF || name[0] != 'c' || name[1] != 'u' || !is_unknown(name) ||
			    bound->skip-- != 0)
				continue;
			snprintf(bound->symbol, sizeof bound->symbol, "%s", name);
			return 1;
		}
	}
	return 0;
}

HIDDEN const char *gate_not_gated(void)
{
	static _Atomic unsigned long long looked_at;
	struct bound bound = {.looked_at = atomic_load(&looked_at)};
	for (size_t i = 0; !atomic_load(&unknown_set); i++) {
		bound.skip = i;
		if (!libraries_each(look_at_bound, &bound)) {
			atomic_store(&looked_at, bound.looked_at);
			break;
		}
		if (reach_in_driver(bound.symbol)) /* not under the loader's lock */
			note_unknown(bound.symbol, 0);
	}
	return atomic_load(&unknown_set) ? unknown : NULL;
}

/* The driver's own functions, looked up once, by which their versions are recognised. */
static void *_Atomic in_driver[CALLS];

static void look_up_all(void)
{
	static _Atomic bool done;
	if (atomic_load(&done))
		return;
	for (int i = 0; i < CALLS; i++)
		atomic_store(&in_driver[i], reach_in_driver(calls[i].name));
	atomic_store(&done, true);
}

static void *theirs_of(size_t i)
{
	look_up_all();
	return atomic_load_explicit(&in_driver[i], memory_order_relaxed);
}

static int answered(int code, const char *name, void **function, int version, uint64_t flags)
{
	if (code != 0 || !name || strncmp(name, "cu", 2) != 0 || !function || !*function)
		return code;
	void *registers = strncmp(name, "cuLogicalEndpoint", 17) == 0 ? rdma_entry(name, *function) : NULL;
	if (registers)
		*function = registers;
	bool is_newer = false;
	const struct named *named = named_by(names, CALLS, name, version, flags & PER_THREAD, *function, theirs_of,
					     reach_in_driver, &is_newer);
	if (named)
		*function = entry_of(&calls[named - names], *function);
	else if (is_newer && has_version(name, POLL))
		note_unknown(name, version);
	return code;
}

#define ANSWERS(symbol, parameters, arguments)                                                             \
	EXPORT int symbol parameters                                                                       \
	{                                                                                                  \
		static int (*_Atomic real) parameters;                                                     \
		if (!atomic_load(&real))                                                                   \
			atomic_store(&real, (int (*) parameters)reach_next(__func__));                     \
		return atomic_load(&real) ? answered(real arguments, name, function, version, flags) : NOT_FOUND; \
	}
ANSWERS(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags),
	(name, function, version, flags))
ANSWERS(cuGetProcAddress_v2, (const char *name, void **function, int version, uint64_t flags, int *status),
	(name, function, version, flags, status))
