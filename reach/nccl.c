/* nccl stands in front of those functions of NCCL that make communicators, register memory with them and use them
 * (nccl.h): what communicators there are, what memory NCCL has, and whether anybody is inside are known so. It has
 * communicators suspended, too. libtms.so asks for all that by gate.h.
 *
 * A call comes here by the loader, for this library is preloaded, or by the address that dlsym gave for a handle
 * (reach.c asks nccl_entry). Several NCCLs may be loaded: who is bound by the loader gets the one that he would have
 * without us, dlsym's answers are of the one that was asked, and each communicator stays with who made it. An NCCL that
 * was used is kept loaded. A program that looks for an ncclCommInitRank with RTLD_DEFAULT finds this one, also where
 * there is no NCCL; it then fails.
 *
 * ncclCommSuspend(comm, NCCL_SUSPEND_MEM) and ncclCommResume(comm) came with NCCL 2.29.7 (nccl.h). Each waits for all
 * ranks (bootstrapBarrier in src/mem_manager.cc), and what has begun to wait cannot be called off. So only communicators
 * whose ranks are all here are suspended, each on a thread of its own, and whoever asked for it stops waiting in time. */
#define _GNU_SOURCE
#include "nccl.h"
#include "reach.h"
#include "words.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DONE = 0, SYSTEM_ERROR = 2, IN_PROGRESS = 7 }; /* ncclResult_t */
enum { SUSPEND_MEM = 1 };			      /* NCCL_SUSPEND_MEM */
enum { CAN_BE_SUSPENDED = 0, IS_SUSPENDED = 1, TOTAL = 3 }; /* ncclCommMemStat_t */

enum {
#define X(symbol, parameters, arguments) AT_##symbol,
#define Y(symbol, words) AT_##symbol,
	NCCL_SEEN(X) NCCL_COUNTED(Y)
#undef X
#undef Y
	AT_ncclGetVersion,
	AT_ncclCommCount,
	AT_ncclCommSuspend,
	AT_ncclCommResume,
	AT_ncclCommMemStats,
	SYMBOLS
};
static const char *const names[SYMBOLS] = {
#define X(symbol, parameters, arguments) #symbol,
#define Y(symbol, words) #symbol,
	NCCL_SEEN(X) NCCL_COUNTED(Y)
#undef X
#undef Y
	"ncclGetVersion", "ncclCommCount", "ncclCommSuspend", "ncclCommResume", "ncclCommMemStats",
};

/* An NCCL that is loaded. */
enum { LIBRARIES = 4, FILLING = 1 };
struct library {
	_Atomic uintptr_t base; /* 0: free */
	void *real[SYMBOLS];
};
static struct library libraries[LIBRARIES];

typedef int version_function(int *);
typedef int count_function(void *, int *);
typedef int suspend_function(void *, int);
typedef int resume_function(void *);
typedef int stats_function(void *, int, uint64_t *);
typedef int group_function(void);
#define REAL(library, symbol, type) ((type *)(library)->real[AT_##symbol])

static uintptr_t base_of(const void *address)
{
	Dl_info info;
	return dladdr(address, &info) ? (uintptr_t)info.dli_fbase : 0;
}

/* The library that a function lies in. NULL: none of ours to take, or too many. */
static struct library *library_of(void *function)
{
	Dl_info info;
	if (!function || !dladdr(function, &info) || !info.dli_fname)
		return NULL;
	uintptr_t base = (uintptr_t)info.dli_fbase;
	for (int i = 0; i < LIBRARIES; i++)
		if (atomic_load_explicit(&libraries[i].base, memory_order_acquire) == base)
			return &libraries[i];
	void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	for (int i = 0; handle && i < LIBRARIES; i++) {
		uintptr_t none = 0;
		if (!atomic_compare_exchange_strong(&libraries[i].base, &none, FILLING))
			continue;
		for (int at = 0; at < SYMBOLS; at++)
			libraries[i].real[at] = atomic_load(&reach_dlsym)(handle, names[at]);
		atomic_store_explicit(&libraries[i].base, base, memory_order_release);
		return &libraries[i];
	}
	return NULL;
}

static const char *file_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static bool is_nccl(const char *path)
{
	return strncmp(file_of(path), "libnccl", 7) == 0;
}

/* Under the loader's lock nothing is opened. */
static int note_path(struct dl_phdr_info *info, size_t size, void *path)
{
	(void)size;
	return is_nccl(info->dlpi_name) && strlen(info->dlpi_name) < PATH_MAX && strcpy(path, info->dlpi_name);
}

static void *in(const char *path, const char *name)
{
	void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	void *found = library ? atomic_load(&reach_dlsym)(library, name) : NULL;
	if (library)
		dlclose(library); /* library_of keeps it */
	return found;
}

/* The function that a caller would be bound to without us: in the program's own libraries, else in those that the
 * caller needs (loaded with RTLD_LOCAL), else in any NCCL that is loaded. */
static struct library *bound_to(const void *caller, const char *name)
{
	static _Atomic uint64_t known[64]; /* callers, with the number of their library below */
	_Static_assert(LIBRARIES <= 4, "it has two bits");
	_Atomic uint64_t *entry = &known[((uintptr_t)caller >> 2) % 64];
	uint64_t was = atomic_load_explicit(entry, memory_order_relaxed);
	if (likely(was >> 2 == (uintptr_t)caller))
		return &libraries[was & 3];
	void *found = reach_next(name);
	Dl_info info;
	if (!found && dladdr(caller, &info) && info.dli_fname)
		found = in(info.dli_fname, name);
	char path[PATH_MAX];
	if ((!found || base_of(found) == base_of(names)) && dl_iterate_phdr(note_path, path))
		found = in(path, name);
	struct library *library = library_of(found);
	if (library)
		atomic_store(entry, (uint64_t)(uintptr_t)caller << 2 | (uint64_t)(library - libraries));
	return library;
}

/* Communicators and registrations, each in a place of its own that is taken and left without a lock. What is made
 * inside a group has its name when the group ends: until then it is written where the program wants it. */
enum state { FREE, TAKEN, WAITING, LIVE };
enum phase { RUNNING, SUSPENDING, SUSPENDED, RESUMING, LOST };

static struct communicator {
	_Atomic int state;
	void *comm, **where;
	pid_t thread; /* whose group it is */
	struct library *library;
	uint64_t clique; /* the same for all ranks; 0: not known */
	int ranks;
	bool blocking;
	uint32_t children; /* made of it, by all ranks in one order */
	_Atomic int phase, code;
	_Atomic bool given_up; /* who asked for it waits no more */
} communicators[256];

static struct registration {
	_Atomic int state;
	void *comm, *handle, **where;
	pid_t thread;
	struct library *library;
	uintptr_t address;
	size_t size;
	bool window;
} registrations[4096];

static _Atomic size_t communicators_used, registrations_used; /* so many are looked at */

#define EACH(name, kind)                                                                                   \
	(struct kind *name = kind##s; name < kind##s + atomic_load_explicit(&kind##s_used, memory_order_relaxed); name++)

#define TAKE(kind)                                                                                         \
	static struct kind *take_##kind(void)                                                              \
	{                                                                                                  \
		for (size_t i = 0; i < sizeof kind##s / sizeof *kind##s; i++) {                            \
			int free_ = FREE;                                                                  \
			if (!atomic_compare_exchange_strong(&kind##s[i].state, &free_, TAKEN))             \
				continue;                                                                  \
			size_t used = atomic_load(&kind##s_used);                                          \
			while (used <= i && !atomic_compare_exchange_weak(&kind##s_used, &used, i + 1))    \
				;                                                                          \
			return &kind##s[i];                                                                \
		}                                                                                          \
		return NULL;                                                                               \
	}
TAKE(communicator)
TAKE(registration)

static pid_t thread_number(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static struct communicator *find(const void *comm)
{
	for EACH (c, communicator)
		if (atomic_load_explicit(&c->state, memory_order_acquire) == LIVE && c->comm == comm)
			return c;
	return NULL;
}

/* Who is inside NCCL. calls: nested, as NCCL calls itself; groups: begun and not ended. */
static __thread struct {
	unsigned calls, groups;
} mine __attribute__((tls_model("initial-exec")));
static _Atomic int inside;
static _Atomic uint32_t held; /* nobody may enter */
static _Atomic pid_t holder;  /* the process for which that is so */

static void enter(void)
{
	if (mine.calls++ || mine.groups)
		return;
	for (;;) {
		atomic_fetch_add(&inside, 1);
		if (likely(!atomic_load(&held)) || atomic_load(&holder) != (pid_t)syscall(SYS_getpid))
			return;
		atomic_fetch_sub(&inside, 1);
		int error = errno;
		syscall(SYS_futex, &held, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
		errno = error;
	}
}

static void leave(void)
{
	if (!--mine.calls && !mine.groups)
		atomic_fetch_sub(&inside, 1);
}

static bool in_group(void)
{
	return mine.groups != 0;
}

/* FNV-1a */
static uint64_t hashed(uint64_t sum, const void *data, size_t size)
{
	const unsigned char *bytes = data;
	for (size_t i = 0; i < size; i++)
		sum = (sum ^ bytes[i]) * 0x100000001b3;
	return sum;
}
static const uint64_t nothing = 0xcbf29ce484222325;

/* What NCCL_COMM_BLOCKING says overrules the program. */
static bool is_blocking(const struct nccl_config *config, const struct communicator *parent)
{
	const char *setting = getenv("NCCL_COMM_BLOCKING");
	if (setting && *setting)
		return *setting != '0';
	if (config && config->size >= sizeof *config && (config->blocking == 0 || config->blocking == 1))
		return config->blocking;
	return !parent || parent->blocking;
}

static void becomes_live(struct communicator *c)
{
	c->comm = *c->where;
	int ranks;
	count_function *count = REAL(c->library, ncclCommCount, count_function);
	if (c->comm && c->ranks == 0 && c->blocking && count && count(c->comm, &ranks) == DONE)
		c->ranks = ranks; /* of those that were made of others */
	atomic_store_explicit(&c->state, c->comm ? LIVE : FREE, memory_order_release);
}

/* A communicator that a call has made, or will have at the end of its group. */
static int made(int code, struct library *library, void **where, uint64_t clique, int ranks, bool blocking)
{
	if ((code != DONE && code != IN_PROGRESS) || mine.calls > 1 || !where)
		return code;
	struct communicator *c = take_communicator();
	if (!c)
		return code;
	c->where = where, c->thread = thread_number(), c->library = library, c->clique = clique, c->ranks = ranks;
	c->blocking = blocking && code == DONE, c->children = 0;
	atomic_store(&c->phase, RUNNING);
	atomic_store(&c->code, DONE);
	if (in_group())
		atomic_store(&c->state, WAITING);
	else
		becomes_live(c);
	return code;
}

static int made_of(int code, struct library *library, void *from, void **where, uint64_t what, const struct nccl_config *config)
{
	struct communicator *parent = find(from);
	uint64_t clique = 0;
	if (parent) {
		uint32_t child = parent->children++;
		clique = hashed(hashed(hashed(nothing, &parent->clique, 8), &child, sizeof child), &what, sizeof what);
	}
	return made(code, library, where, clique, 0, is_blocking(config, parent));
}

/* The place of one that a thread of carry_out is still with is not used again. */
static void goes(void *comm)
{
	struct communicator *c = find(comm);
	int phase = c ? atomic_load(&c->phase) : RUNNING;
	if (phase == SUSPENDING || phase == RESUMING)
		c->comm = NULL;
	else if (c)
		atomic_store(&c->state, FREE);
}

static void goes_with_its_memory(void *comm)
{
	goes(comm);
	for EACH (r, registration)
		if (atomic_load(&r->state) == LIVE && r->comm == comm)
			atomic_store(&r->state, FREE);
}

static int registered(int code, struct library *library, void *comm, void *memory, size_t size, void **where, bool window)
{
	if (code != DONE || mine.calls > 1 || !where)
		return code;
	bool later = window && in_group();
	if (!later && !*where)
		return code; /* NCCL has decided not to */
	struct registration *r = take_registration();
	if (!r)
		return code;
	r->comm = comm, r->where = where, r->handle = later ? NULL : *where, r->thread = thread_number();
	r->library = library, r->address = (uintptr_t)memory, r->size = size, r->window = window;
	atomic_store(&r->state, later ? WAITING : LIVE);
	return code;
}

static int deregistered(int code, void *comm, void *handle)
{
	if (code != DONE)
		return code;
	for EACH (r, registration) {
		int live = LIVE;
		if (atomic_load(&r->state) == LIVE && r->comm == comm && r->handle == handle &&
		    atomic_compare_exchange_strong(&r->state, &live, FREE))
			break;
	}
	return code;
}

/* The thread's outermost group has ended. */
static void group_ended(int code)
{
	const pid_t self = thread_number();
	const bool good = code == DONE || code == IN_PROGRESS;
	for EACH (c, communicator) {
		if (atomic_load(&c->state) != WAITING || c->thread != self)
			continue;
		c->blocking = c->blocking && code == DONE;
		if (good)
			becomes_live(c);
		else
			atomic_store(&c->state, FREE);
	}
	for EACH (r, registration) {
		if (atomic_load(&r->state) != WAITING || r->thread != self)
			continue;
		r->handle = good ? *r->where : NULL;
		atomic_store(&r->state, r->handle ? LIVE : FREE);
	}
}

/* What each function of NCCL_SEEN does beside the call of its like in the library. */
#define CALL(symbol, arguments) ((typeof(&symbol))library->real[AT_##symbol])arguments
#define X(symbol, parameters, arguments) EXPORT int symbol parameters;
NCCL_SEEN(X)
#undef X
static int in_ncclCommInitRank(struct library *library, void **comm, int ranks, struct nccl_id id, int rank)
{
	return made(CALL(ncclCommInitRank, (comm, ranks, id, rank)), library, comm, hashed(nothing, &id, sizeof id), ranks,
		    is_blocking(NULL, NULL));
}

static int in_ncclCommInitRankConfig(struct library *library, void **comm, int ranks, struct nccl_id id, int rank, const struct nccl_config *config)
{
	return made(CALL(ncclCommInitRankConfig, (comm, ranks, id, rank, config)), library, comm,
		    hashed(nothing, &id, sizeof id), ranks, is_blocking(config, NULL));
}

static int in_ncclCommInitRankScalable(struct library *library, void **comm, int ranks, int rank, int ids, const struct nccl_id *id,
     const struct nccl_config *config)
{
	int code = CALL(ncclCommInitRankScalable, (comm, ranks, rank, ids, id, config));
	return made(code, library, comm, code == DONE ? hashed(nothing, id, (size_t)ids * sizeof *id) : 0, ranks,
		    is_blocking(config, NULL));
}

static int in_ncclCommInitAll(struct library *library, void **comm, int ranks, const int *devices)
{
	static _Atomic uint64_t cliques;
	uint64_t clique = atomic_fetch_add(&cliques, 1);
	clique = hashed(hashed(nothing, &cliques, sizeof(void *)), &clique, sizeof clique);
	int code = CALL(ncclCommInitAll, (comm, ranks, devices));
	for (int i = 0; code == DONE && i < ranks; i++)
		made(code, library, comm + i, clique, ranks, is_blocking(NULL, NULL));
	return code;
}

static int in_ncclCommSplit(struct library *library, void *parent, int color, int order, void **comm, const struct nccl_config *config)
{
	return made_of(CALL(ncclCommSplit, (parent, color, order, comm, config)), library, parent, comm, (uint64_t)color, config);
}

static int in_ncclCommShrink(struct library *library, void *parent, int *without, int count, void **comm, const struct nccl_config *config, int flags)
{
	return made_of(CALL(ncclCommShrink, (parent, without, count, comm, config, flags)), library, parent, comm, ~0ull, config);
}

/* New ranks have no parent, so that they are not told from others'. */
static int in_ncclCommGrow(struct library *library, void *parent, int ranks, const struct nccl_id *id, int rank, void **comm, const struct nccl_config *config)
{
	return made(CALL(ncclCommGrow, (parent, ranks, id, rank, comm, config)), library, comm, 0, ranks,
		    is_blocking(config, find(parent)));
}

static int in_ncclCommFinalize(struct library *library, void *comm)
{
	goes(comm);
	return CALL(ncclCommFinalize, (comm));
}

static int in_ncclCommDestroy(struct library *library, void *comm)
{
	goes_with_its_memory(comm);
	return CALL(ncclCommDestroy, (comm));
}

static int in_ncclCommAbort(struct library *library, void *comm)
{
	goes_with_its_memory(comm);
	return CALL(ncclCommAbort, (comm));
}

static int in_ncclCommRegister(struct library *library, void *comm, void *memory, size_t size, void **handle)
{
	return registered(CALL(ncclCommRegister, (comm, memory, size, handle)), library, comm, memory, size, handle, false);
}

static int in_ncclCommDeregister(struct library *library, void *comm, void *handle)
{
	return deregistered(CALL(ncclCommDeregister, (comm, handle)), comm, handle);
}

static int in_ncclCommWindowRegister(struct library *library, void *comm, void *memory, size_t size, void **window, int flags)
{
	return registered(CALL(ncclCommWindowRegister, (comm, memory, size, window, flags)), library, comm, memory, size,
			  window, true);
}

static int in_ncclCommWindowDeregister(struct library *library, void *comm, void *window)
{
	return deregistered(CALL(ncclCommWindowDeregister, (comm, window)), comm, window);
}

static int in_ncclGroupStart(struct library *library)
{
	int code = CALL(ncclGroupStart, ());
	if (code == DONE && mine.calls == 1)
		mine.groups++;
	return code;
}

static int ended(int code)
{
	if (mine.calls == 1 && mine.groups && !--mine.groups)
		group_ended(code);
	return code;
}

static int in_ncclGroupEnd(struct library *library)
{
	return ended(CALL(ncclGroupEnd, ()));
}

static int in_ncclGroupSimulateEnd(struct library *library, void *result)
{
	return ended(CALL(ncclGroupSimulateEnd, (result)));
}

/* Buffers of collectives that were captured: NCCL may register them with the graph, unless NCCL_GRAPH_REGISTER is 0 (its
 * user guide, "User Buffer Registration"). The first are enough for a warning. */
static struct captured {
	_Atomic uintptr_t address;
	const char *call;
	struct library *library;
} captured[256];
static _Atomic size_t captured_count;

static void note_captured(struct library *library, const char *call, uintptr_t first, uintptr_t second, uintptr_t stream)
{
	typedef int is_capturing(uintptr_t, int *);
	static _Atomic(is_capturing *) ask;
	const char *setting = getenv("NCCL_GRAPH_REGISTER");
	int active = 0;
	if (atomic_load(&captured_count) >= sizeof captured / sizeof *captured || (setting && atoi(setting) == 0))
		return;
	if (!atomic_load(&ask))
		atomic_store(&ask, (is_capturing *)reach_next("cuStreamIsCapturing"));
	if (!stream || !atomic_load(&ask) || atomic_load(&ask)(stream, &active) != 0 || !active)
		return;
	size_t at = atomic_fetch_add(&captured_count, 2);
	for (size_t i = at; i < at + 2 && i < sizeof captured / sizeof *captured; i++) {
		captured[i].call = call, captured[i].library = library;
		atomic_store(&captured[i].address, i == at ? first : second);
	}
}

#define LAST_4 d
#define LAST_6 f
#define LAST_7 g
#define LAST_8 h
#define LAST_11 k

/* The ways in: by the loader, and for each library the one that dlsym answers with. Not all functions are in each. */
#define ENTERED(which, symbol, arguments)                                                                  \
	struct library *library = which;                                                                   \
	if (unlikely(!library || !library->real[AT_##symbol]))                                             \
		return SYSTEM_ERROR;                                                                       \
	enter();                                                                                           \
	int code = in_##symbol arguments;                                                                  \
	leave();                                                                                           \
	return code;
#define X(symbol, parameters, arguments)                                                                   \
	int symbol parameters                                                                              \
	{                                                                                                  \
		ENTERED(bound_to(__builtin_return_address(0), #symbol), symbol, arguments)                 \
	}                                                                                                  \
	static int symbol##_0 parameters { ENTERED(&libraries[0], symbol, arguments) }                     \
	static int symbol##_1 parameters { ENTERED(&libraries[1], symbol, arguments) }                     \
	static int symbol##_2 parameters { ENTERED(&libraries[2], symbol, arguments) }                     \
	static int symbol##_3 parameters { ENTERED(&libraries[3], symbol, arguments) }
#define Y(symbol, words)                                                                                   \
	static int in_##symbol(struct library *library, WORDS_##words)                                     \
	{                                                                                                  \
		if (unlikely(gate_saw_capture()))                                                          \
			note_captured(library, #symbol, a, b, LAST_##words);                               \
		return ((int (*)(WORDS_##words))library->real[AT_##symbol])(PASS_##words);                 \
	}                                                                                                  \
	EXPORT int symbol(WORDS_##words);                                                                  \
	X(symbol, (WORDS_##words), (library, PASS_##words))
NCCL_SEEN(X)
NCCL_COUNTED(Y)
#undef X
#undef Y

HIDDEN void *nccl_entry(const char *symbol, void *theirs)
{
	static void *const entries[][LIBRARIES] = {
#define X(symbol, parameters, arguments) {symbol##_0, symbol##_1, symbol##_2, symbol##_3},
#define Y(symbol, words) X(symbol, , )
		NCCL_SEEN(X) NCCL_COUNTED(Y)
#undef X
#undef Y
	};
	Dl_info info;
	for (size_t at = 0; at < sizeof entries / sizeof *entries; at++) {
		if (strcmp(names[at], symbol) != 0)
			continue;
		if (!dladdr(theirs, &info) || !info.dli_fname || !is_nccl(info.dli_fname))
			return NULL;
		struct library *library = library_of(theirs);
		return library ? entries[at][library - libraries] : NULL;
	}
	return NULL;
}

/* What libtms.so asks (gate.h). */

static void hold(bool on)
{
	atomic_store(&holder, (pid_t)syscall(SYS_getpid));
	atomic_store(&held, on);
	if (!on)
		syscall(SYS_futex, &held, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static bool is_used(void)
{
	return atomic_load(&inside) != 0;
}

static int version_of(const struct library *library)
{
	int version = 0;
	version_function *ask = REAL(library, ncclGetVersion, version_function);
	return ask && ask(&version) == DONE ? version : 0;
}

static int ranks_here(const struct communicator *c)
{
	int here = 0;
	for EACH (other, communicator)
		here += atomic_load(&other->state) == LIVE && other->library == c->library && other->clique == c->clique;
	return here;
}

static uint64_t stat_of(const struct communicator *c, int stat)
{
	uint64_t value = 0;
	stats_function *ask = REAL(c->library, ncclCommMemStats, stats_function);
	return ask && ask(c->comm, stat, &value) == DONE ? value : 0;
}

/* Why a communicator cannot be suspended, or NULL. ask: it too, while nobody is inside. */
static const char *obstacle(const struct communicator *c, bool ask)
{
	if (!REAL(c->library, ncclCommSuspend, suspend_function) || !REAL(c->library, ncclCommResume, resume_function))
		return "this version has no ncclCommSuspend, which came with 2.29.7";
	if (atomic_load(&c->code) != DONE)
		return "ncclCommSuspend has failed";
	if (!c->blocking)
		return "non-blocking ones go on with threads of NCCL's own";
	if (c->ranks != 1 && (!c->clique || ranks_here(c) != c->ranks))
		return "ncclCommSuspend waits for all ranks, and some are in other processes";
	if (ask && stat_of(c, TOTAL) == 0)
		return "NCCL's memory manager is off, or has nothing";
	if (ask && stat_of(c, IS_SUSPENDED))
		return "the program has suspended it";
	return NULL;
}

static bool look(size_t *cursor, bool ask, struct gate_communicator *to)
{
	for (; *cursor < atomic_load(&communicators_used); (*cursor)++) {
		const struct communicator *c = &communicators[*cursor];
		if (atomic_load(&c->state) != LIVE)
			continue;
		int phase = atomic_load(&c->phase);
		*to = (struct gate_communicator){
			.version = version_of(c->library),
			.suspended = phase == SUSPENDED,
			.busy = phase == SUSPENDING || phase == RESUMING,
			.lost = phase == LOST,
			.code = atomic_load(&c->code),
		};
		if (phase == RUNNING)
			to->obstacle = obstacle(c, ask);
		if (ask && (phase == RUNNING || phase == SUSPENDED)) {
			to->total = stat_of(c, TOTAL);
			to->suspendable = stat_of(c, CAN_BE_SUSPENDED);
		}
		(*cursor)++;
		return true;
	}
	return false;
}

static bool look_at_memory(size_t *cursor, struct gate_registration *to)
{
	enum { REGISTRATIONS = sizeof registrations / sizeof *registrations, BUFFERS = sizeof captured / sizeof *captured };
	for (; *cursor < REGISTRATIONS; (*cursor)++) {
		const struct registration *r = &registrations[*cursor];
		if (*cursor >= atomic_load(&registrations_used)) {
			*cursor = REGISTRATIONS;
			break;
		}
		if (atomic_load(&r->state) != LIVE)
			continue;
		*to = (struct gate_registration){
			.address = r->address,
			.size = r->size,
			.call = r->window ? "ncclCommWindowRegister" : "ncclCommRegister",
			.undone_by = r->window ? "ncclCommWindowDeregister" : "ncclCommDeregister",
			.version = version_of(r->library),
		};
		(*cursor)++;
		return true;
	}
	for (; *cursor < REGISTRATIONS + BUFFERS; (*cursor)++) {
		const struct captured *c = &captured[*cursor - REGISTRATIONS];
		uintptr_t address = atomic_load(&c->address);
		if (!address)
			continue;
		*to = (struct gate_registration){
			.address = address, .size = 1, .call = c->call, .version = version_of(c->library)};
		(*cursor)++;
		return true;
	}
	return false;
}

/* One rank's suspend or resume. It may never come back, when another rank does not; then that thread stays there. */
static _Atomic uint32_t started; /* counts up: those of the number before may begin */

struct rank {
	struct communicator *c;
	uint32_t number;
	bool suspend;
};
static _Atomic bool called_off;

static int call_nccl(struct communicator *c, bool suspend)
{
	static struct gate_call calls[] = {{.name = "ncclCommResume", .kind = WORK}, {.name = "ncclCommSuspend", .kind = WORK}};
	struct gate_mark *mark = gate_pass(&calls[suspend]);
	int code = SYSTEM_ERROR;
	if (mark)
		code = suspend ? REAL(c->library, ncclCommSuspend, suspend_function)(c->comm, SUSPEND_MEM)
			       : REAL(c->library, ncclCommResume, resume_function)(c->comm);
	gate_leave(mark);
	return code;
}

static void *carry_out(void *rank)
{
	struct rank job = *(struct rank *)rank;
	free(rank);
	struct communicator *c = job.c;
	while (atomic_load(&started) == job.number)
		syscall(SYS_futex, &started, FUTEX_WAIT_PRIVATE, job.number, NULL, NULL, 0);
	if (atomic_load(&called_off)) {
		atomic_store(&c->phase, job.suspend ? RUNNING : SUSPENDED);
		return NULL;
	}
	int code = call_nccl(c, job.suspend);
	bool suspended = job.suspend && code == DONE;
	if (suspended && atomic_load(&c->given_up)) { /* nobody would resume it */
		code = call_nccl(c, false);
		suspended = false, job.suspend = false;
	}
	int now = suspended ? SUSPENDED : code != DONE && !job.suspend ? LOST : RUNNING;
	atomic_store(&c->code, code);
	atomic_store(&c->phase, now);
	if (!c->comm) /* destroyed meanwhile: see goes */
		atomic_store(&c->state, FREE);
	return NULL;
}

static bool start_thread(struct communicator *c, bool suspend, uint32_t number)
{
	pthread_attr_t detached;
	pthread_t thread;
	struct rank *rank = malloc(sizeof *rank);
	if (!rank || pthread_attr_init(&detached) != 0) {
		free(rank);
		return false;
	}
	*rank = (struct rank){c, number, suspend};
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool made = pthread_create(&thread, &detached, carry_out, rank) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&detached);
	if (!made)
		free(rank);
	return made;
}

/* All threads are there before the first begins: one that is missing would have the others wait for it. */
static bool begin(bool suspend)
{
	const uint32_t number = atomic_load(&started);
	bool all = true;
	atomic_store(&called_off, false);
	for EACH (c, communicator) {
		int was = suspend ? RUNNING : SUSPENDED;
		if (atomic_load(&c->state) != LIVE || atomic_load(&c->phase) != was || (suspend && obstacle(c, true)))
			continue;
		atomic_store(&c->given_up, false);
		atomic_store(&c->phase, suspend ? SUSPENDING : RESUMING);
		if (!start_thread(c, suspend, number)) {
			atomic_store(&c->phase, was);
			all = false;
		}
	}
	atomic_store(&called_off, !all);
	atomic_fetch_add(&started, 1);
	syscall(SYS_futex, &started, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return all;
}

static bool is_busy(void)
{
	for EACH (c, communicator) {
		int phase = atomic_load(&c->phase);
		if (atomic_load(&c->state) == LIVE && (phase == SUSPENDING || phase == RESUMING) && !atomic_load(&c->given_up))
			return true;
	}
	return false;
}

static void give_up(void)
{
	for EACH (c, communicator) {
		int phase = atomic_load(&c->phase);
		if (atomic_load(&c->state) == LIVE && (phase == SUSPENDING || phase == RESUMING))
			atomic_store(&c->given_up, true);
	}
}

const struct gate_nccl nccl_gate = {
	.hold = hold,
	.is_used = is_used,
	.look = look,
	.look_at_memory = look_at_memory,
	.begin = begin,
	.is_busy = is_busy,
	.give_up = give_up,
};
