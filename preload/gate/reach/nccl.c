/* nccl interposes those functions of NCCL that make communicators, register memory with them and use them (nccl.h).
 *
 * A call comes here through the loader, because this library is preloaded, or through the address that dlsym
 * returned for a handle (reach.c asks nccl_entry). A process may have several NCCLs. A caller that the loader binds
 * gets the NCCL that it would have without us, dlsym answers with the NCCL of its handle, and each communicator
 * stays with the NCCL that made it. An NCCL that was used stays loaded. A program that looks for ncclCommInitRank
 * with RTLD_DEFAULT finds this one, even where there is no NCCL; the call then fails. */
#define _GNU_SOURCE
#include "nccl.h"
#include "../../../forward/symbols.h"
#include "../../../forward/words.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const names[SYMBOLS] = {
#define X(symbol, ...) #symbol,
	NCCL_SEEN(X) NCCL_COUNTED(X) NCCL_ASKED(X)
#undef X
};

/* The NCCLs that are loaded. */
enum { LIBRARIES = 4, FILLING = 1 };
static struct library libraries[LIBRARIES];

/* Returns the library that a function lies in, or NULL if there is none or there are too many. */
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

static const char library_name[] = "libnccl";

static struct library *bound_to(const void *caller, const char *name)
{
	static _Atomic uint64_t known[64]; /* callers, with the number of their library below */
	_Static_assert(LIBRARIES <= 4, "it has two bits");
	_Atomic uint64_t *entry = &known[((uintptr_t)caller >> 2) % 64];
	uint64_t was = atomic_load_explicit(entry, memory_order_relaxed);
	if (likely(was >> 2 == (uintptr_t)caller))
		return &libraries[was & 3];
	struct library *library = library_of(reach_bound(caller, name, library_name)); /* which keeps it */
	if (library)
		atomic_store(entry, (uint64_t)(uintptr_t)caller << 2 | (uint64_t)(library - libraries));
	return library;
}

static int all_made(int code, struct library *library, void **comm, int ranks)
{
	const uint64_t clique = comm_clique_here();
	for (int i = 0; code == DONE && i < ranks; i++)
		comm_made(code, library, comm + i, clique, ranks, i, comm_blocks(NULL, NULL));
	return code;
}

static int started(int code)
{
	if (code == DONE)
		inside_group_started();
	return code;
}

static int ended(int code, bool launches)
{
	if (inside_group_ended()) {
		const bool good = code == DONE || code == IN_PROGRESS;
		comm_group_ended(good, code == DONE);
		memory_group_ended(good);
		sequence_group_ended(good && launches);
	}
	return code;
}

/* Each function has an entry for the loader, and one for each library, which dlsym answers with. Some libraries lack
 * some functions. */
#define ENTERED(which, symbol, does)                                                                       \
	struct library *library = which;                                                                   \
	if (unlikely(!library || !library->real[AT_##symbol]) || unlikely(!inside_enter()))                       \
		return SYSTEM_ERROR;                                                                       \
	int answer = does;                                                                                 \
	inside_leave(AT_##symbol != AT_ncclGroupStart);                                                           \
	return answer;
#define ENTRIES(symbol, parameters, does)                                                                  \
	EXPORT int symbol parameters                                                                       \
	{                                                                                                  \
		ENTERED(bound_to(__builtin_return_address(0), #symbol), symbol, does)                      \
	}                                                                                                  \
	static int symbol##_0 parameters { ENTERED(&libraries[0], symbol, does) }                          \
	static int symbol##_1 parameters { ENTERED(&libraries[1], symbol, does) }                          \
	static int symbol##_2 parameters { ENTERED(&libraries[2], symbol, does) }                          \
	static int symbol##_3 parameters { ENTERED(&libraries[3], symbol, does) }
#define X(symbol, parameters, arguments, before, result)                                                   \
	ENTRIES(symbol, parameters, ({                                                                     \
			before;                                                                            \
			int code = ((int(*) parameters)library->real[AT_##symbol])arguments;               \
			result;                                                                            \
		}))
#define Y(symbol, words, comm, stream, counted)                                                            \
	static int in_##symbol(struct library *library, WORDS_##words)                                     \
	{                                                                                                  \
		struct sequence *sequence = NULL;                                                          \
		if (unlikely(gate_saw_capture()) && memory_captured(library, #symbol, a, b, stream)) \
			sequence_captured();                                                               \
		else if (unlikely(!sequence_begin((void *)comm, counted, (int)d, &sequence)))      \
			return INVALID_USAGE;                                                              \
		int code = ((int (*)(WORDS_##words))library->real[AT_##symbol])(PASS_##words);             \
		sequence_ended(sequence, code == DONE || code == IN_PROGRESS);                             \
		return code;                                                                               \
	}                                                                                                  \
	ENTRIES(symbol, (WORDS_##words), in_##symbol(library, PASS_##words))
NCCL_SEEN(X)
NCCL_COUNTED(Y)
#undef X
#undef Y

HIDDEN void *nccl_entry(const char *symbol, void *theirs)
{
	static void *const entries[][LIBRARIES] = {
#define X(symbol, ...) {symbol##_0, symbol##_1, symbol##_2, symbol##_3},
		NCCL_SEEN(X) NCCL_COUNTED(X)
#undef X
	};
	Dl_info info;
	for (size_t at = 0; at < sizeof entries / sizeof *entries; at++) {
		if (strcmp(names[at], symbol) != 0)
			continue;
		if (!dladdr(theirs, &info) || !info.dli_fname ||
		    strncmp(file_of(info.dli_fname), library_name, strlen(library_name)) != 0)
			return NULL;
		struct library *library = library_of(theirs);
		return library ? entries[at][library - libraries] : NULL;
	}
	return NULL;
}

const struct gate_nccl nccl_gate = {
#define X(returns, name, parameters, arguments) .name = nccl_##name,
	GATE_NCCL(X)
#undef X
};
