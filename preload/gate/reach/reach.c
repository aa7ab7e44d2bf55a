/* libtms_reach.so stands in front of dlsym and dlvsym, for programs whose CUDA calls the loader does not bind: a
 * static libcudart, libcudart itself, JAX and CuPy take the driver's functions from a handle of libcuda.so.1. If
 * libtms.so has a function of that name (tms_driver_function), the answer is that function. nccl.c answers for
 * functions of NCCL, rdma.c for functions that register memory elsewhere, which NCCL takes by dlvsym. Every other call
 * jumps on to the next dlsym, which may belong to another interposing library: RTLD_NEXT and RTLD_DEFAULT depend on the
 * caller, which dlsym knows by the return address. calls.c has the calls that pass the gate. */
#define _GNU_SOURCE
#include "reach.h"
#include "../../../forward/symbols.h"

#include <stdlib.h>

typedef void *answer(const char *name, void *theirs, const void *caller);
typedef bool is_pausable(uintptr_t address);
typedef make_room *find_room(void);

/* Read by the entries below. */
HIDDEN reach_find *_Atomic reach_dlsym;
HIDDEN reach_find_version *_Atomic reach_dlvsym;
static answer *_Atomic ours; /* libtms.so's, or NULL if that is not loaded */
static is_pausable *pausable;
static find_room *room;
static tell_refused *refused;
static reach_find *c_library; /* its dlsym: the next one, unless another library stands between */
static const char *misplaced;

/* The entry below, by a name that no other library interposes. */
extern const char reach_entry_dlsym[] HIDDEN;

struct search {
	bool past_us, behind, behind_other; /* libtms.so; another library with a dlsym */
	reach_find *dlsym, *c_dlsym;
	reach_find_version *dlvsym;
	answer *answer;
	is_pausable *pausable;
	find_room *room;
	tell_refused *refused;
};

/* Reports whether everything has been found. */
static bool look(uintptr_t base, const ElfW(Dyn) *dynamic, struct search *search)
{
	struct symbols symbols;
	if (!read_symbols(base, dynamic, &symbols))
		return false;
	if (!search->answer) {
		search->answer = (answer *)defined(&symbols, "tms_driver_function");
		search->pausable = (is_pausable *)defined(&symbols, "tms_is_pausable");
		search->room = (find_room *)defined(&symbols, "tms_room");
		search->refused = (tell_refused *)defined(&symbols, "tms_refused");
		search->behind = search->answer && !search->past_us;
	}
	const char *mine = defined(&symbols, "dlsym");
	if (mine == reach_entry_dlsym) {
		search->past_us = true;
		return false;
	}
	if (!search->past_us) {
		search->behind_other |= mine != NULL;
		return false;
	}
	if (!search->dlsym)
		search->dlsym = (reach_find *)mine;
	if (!search->dlvsym) /* not every library with a dlsym has one */
		search->dlvsym = (reach_find_version *)defined(&symbols, "dlvsym");
	if (!search->c_dlsym)
		search->c_dlsym = (reach_find *)c_dlsym(&symbols);
	return search->c_dlsym && search->answer;
}

static int look_into(struct dl_phdr_info *info, size_t size, void *search)
{
	(void)size;
	return look(info->dlpi_addr, dynamic_of(info), search);
}

/* The loader's list for debuggers, which musl lacks. */
extern struct r_debug _r_debug __attribute__((weak));

/* For a C library without dlvsym. */
static void *none(void *handle, const char *name, const char *version)
{
	(void)handle, (void)name, (void)version;
	return NULL;
}

/* At the first call, or when the library is loaded: while there is one thread. A sanitizer's start calls dlsym before
 * the functions that it interposes work (dl_iterate_phdr, strcmp), so the loader's list is read without a call. */
__attribute__((constructor)) static void load(void)
{
	struct search search = {0};
	if (&_r_debug) {
		for (const struct link_map *l = _r_debug.r_map; l && !look(l->l_addr, l->l_ld, &search); l = l->l_next)
			;
	} else {
		dl_iterate_phdr(look_into, &search);
	}
	if (!search.behind)
		misplaced = "libtms_reach.so stands before libtms.so in LD_PRELOAD, and must stand behind it";
	else if (search.behind_other)
		misplaced = "another library's dlsym stands before that of libtms_reach.so: name libtms.so and libtms_reach.so "
			    "first in LD_PRELOAD";
	c_library = search.c_dlsym ? search.c_dlsym : search.dlsym;
	pausable = search.pausable;
	room = search.room;
	refused = search.refused;
	atomic_store(&ours, search.answer);
	atomic_store(&reach_dlvsym, search.dlvsym ? search.dlvsym : none);
	atomic_store(&reach_dlsym, search.dlsym);
}

static inline bool of_driver(void *handle, const char *name)
{
	return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z' && handle != RTLD_DEFAULT &&
	       handle != RTLD_NEXT && atomic_load_explicit(&ours, memory_order_relaxed);
}

static inline bool of_nccl(void *handle, const char *name)
{
	return name && name[0] == 'n' && name[1] == 'c' && name[2] == 'c' && name[3] == 'l' && handle != RTLD_DEFAULT &&
	       handle != RTLD_NEXT;
}

static inline bool of_rdma(void *handle, const char *name)
{
	static const char prefixes[][5] = {"ibv_", "mlx5", "cuFi", "cuLo", "gdr_"};
	for (int i = 0; name && handle != RTLD_DEFAULT && handle != RTLD_NEXT && i < 5; i++) {
		int same = 0;
		while (same < 4 && name[same] == prefixes[i][same])
			same++;
		if (same == 4)
			return true;
	}
	return false;
}

HIDDEN bool reach_is_pausable(uintptr_t address)
{
	return pausable && pausable(address);
}

HIDDEN make_room *reach_room(void)
{
	return room ? room() : NULL;
}

HIDDEN __attribute__((cold)) void reach_refused(const char *call)
{
	if (refused)
		refused(call);
}

HIDDEN const char *reach_misplaced(void)
{
	return misplaced;
}

HIDDEN bool reach_is_hooked(void)
{
	return atomic_load_explicit(&reach_dlsym, memory_order_relaxed) != c_library;
}

static void *in_driver(reach_find *find, const char *symbol)
{
	static void *_Atomic driver;
	if (!atomic_load(&driver)) /* kept: it is there as long as the process */
		atomic_store(&driver, dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD));
	return atomic_load(&driver) ? find(atomic_load(&driver), symbol) : NULL;
}

HIDDEN void *reach_in_driver(const char *symbol)
{
	return in_driver(atomic_load(&reach_dlsym), symbol);
}

/* Another library's dlsym is not asked, because the loader does not ask it either. But libtms.so has one function for
 * calls that the loader binds and for those that dlsym finds: where the other library has a function of that name, both
 * go on to it, so that it sees each allocation and its end. */
HIDDEN void *reach_look(const char *name)
{
	if (!atomic_load_explicit(&reach_dlsym, memory_order_acquire))
		load();
	/* Called as this library, so without a jump: another one's dlsym would look behind itself. */
	void *found = c_library(RTLD_NEXT, name);
	if (!found)
		found = in_driver(c_library, name);
	if (!found || !reach_is_hooked() || !is_of_driver(found) || !ours || !ours(name, found, NULL))
		return found;
	void *theirs = reach_in_driver(name);
	return theirs ? theirs : found;
}

HIDDEN void *reach_next(const char *name)
{
	return kept(reach_look(name));
}

/* theirs is the next dlsym's answer, which may be a function of that dlsym's library in front of the driver's. */
static void *chosen(void *handle, const char *name, void *theirs, const void *caller)
{
	void *drivers = theirs && reach_is_hooked() ? c_library(handle, name) : theirs;
	void *found = drivers ? ours(name, drivers, caller) : NULL;
	if (found)
		return found == drivers ? theirs : found; /* libtms.so itself gets theirs */
	return is_of_driver(drivers) ? calls_entry(name, theirs) : NULL;
}

/* The entries call these first, and go on to the next dlsym if they return NULL. */
HIDDEN void *reach_answer(void *handle, const char *name, const void *caller)
{
	if (!atomic_load_explicit(&reach_dlsym, memory_order_acquire))
		load();
	if (of_nccl(handle, name)) {
		void *theirs = reach_dlsym(handle, name);
		return theirs ? nccl_entry(name, theirs) : NULL;
	}
	if (of_rdma(handle, name))
		return rdma_entry(name, reach_dlsym(handle, name));
	if (!of_driver(handle, name))
		return NULL;
	return chosen(handle, name, reach_dlsym(handle, name), caller);
}

/* The first version of libibverbs has other structures, and no memory of a GPU. */
HIDDEN void *reach_answer_version(void *handle, const char *name, const char *version)
{
	if (!atomic_load_explicit(&reach_dlsym, memory_order_acquire))
		load();
	if (!of_rdma(handle, name) || !version || equal(version, "IBVERBS_1.0"))
		return NULL;
	return rdma_entry(name, reach_dlvsym(handle, name, version));
}

HIDDEN void *reach_bound(const void *caller, const char *name, const char *library)
{
	void *found = reach_next(name);
	Dl_info info;
	if (!found && dladdr(caller, &info) && info.dli_fname)
		found = in_loaded(info.dli_fname, name, atomic_load(&reach_dlsym));
	if (!found || reach_is_here(found)) {
		char *path = malloc(PATH_MAX); /* the thread's stack may be small */
		found = NULL;
		if (path && dl_iterate_phdr(note_path, &(struct loaded){library, 0, path}))
			found = in_loaded(path, name, atomic_load(&reach_dlsym));
		free(path);
	}
	return found;
}

HIDDEN bool reach_is_here(const void *function)
{
	Dl_info its, mine;
	return dladdr(function, &its) && dladdr(reach_entry_dlsym, &mine) && its.dli_fbase == mine.dli_fbase;
}

#define CHOICE(name) CHOICE_##name
#define CHOICE_dlsym
#define CHOICE_dlvsym "_version"
#if defined(__x86_64__)
/* Three pushes and the return address keep the stack aligned to 16 bytes. */
#define ENTRY(name, caller)                                                                                \
	__asm__(".text\n.globl " #name "\n.type " #name ",@function\n"                                      \
		".globl reach_entry_" #name "\n.hidden reach_entry_" #name "\n"                           \
		#name ":\nreach_entry_" #name ":\n"                                                       \
		"	endbr64\n"                                                                         \
		"	push %rdi\n	push %rsi\n	push %rdx\n"                                       \
		caller "	call reach_answer" CHOICE(name) "\n"                                       \
		"	pop %rdx\n	pop %rsi\n	pop %rdi\n"                                        \
		"	test %rax, %rax\n	jnz 1f\n"                                                  \
		"	jmp *reach_" #name "(%rip)\n"                                                      \
		"1:	ret\n.size " #name ", .-" #name "\n")
ENTRY(dlsym, "	mov 24(%rsp), %rdx\n");
#elif defined(__aarch64__)
#define ENTRY(name, caller)                                                                                \
	__asm__(".text\n.globl " #name "\n.type " #name ",%function\n"                                      \
		".globl reach_entry_" #name "\n.hidden reach_entry_" #name "\n"                           \
		#name ":\nreach_entry_" #name ":\n"                                                       \
		"	hint #34\n"                                                                        \
		"	stp x29, x30, [sp, #-48]!\n	mov x29, sp\n"                                     \
		"	stp x0, x1, [sp, #16]\n	str x2, [sp, #32]\n"                                       \
		caller "	bl reach_answer" CHOICE(name) "\n"                                         \
		"	mov x16, x0\n"                                                                     \
		"	ldr x2, [sp, #32]\n	ldp x0, x1, [sp, #16]\n	ldp x29, x30, [sp], #48\n"         \
		"	cbnz x16, 1f\n"                                                                    \
		"	adrp x16, reach_" #name "\n	ldr x16, [x16, #:lo12:reach_" #name "]\n	br x16\n"  \
		"1:	mov x0, x16\n	ret\n.size " #name ", .-" #name "\n")
ENTRY(dlsym, "	mov x2, x30\n");
#else
#error "write the two entries for this processor"
#endif
ENTRY(dlvsym, "");
