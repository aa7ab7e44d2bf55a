/* libtms_reach.so stands in front of dlsym and dlvsym, for programs whose CUDA calls the loader does not bind: a
 * static libcudart, libcudart itself, JAX and CuPy take the driver's functions from a handle of libcuda.so.1. Asked
 * for one that libtms.so has a function for, it answers with that; which those are, libtms.so says
 * (tms_driver_function). Functions of NCCL are answered by nccl.c. Every other call goes on to the next dlsym by a jump, so that who called can still be told
 * from the return address, on which RTLD_NEXT and RTLD_DEFAULT depend. What passes the gate is in calls.c. */
#define _GNU_SOURCE
#include "reach.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

typedef void *answer(const char *name, void *theirs, const void *caller);

/* Read by the entries below. */
HIDDEN reach_find *_Atomic reach_dlsym;
HIDDEN reach_find_version *_Atomic reach_dlvsym;
static answer *_Atomic ours; /* of libtms.so; NULL: it is not loaded */
static bool behind;	     /* libtms.so */

/* One library's dynamic symbols. */
struct symbols {
	uintptr_t base;
	const ElfW(Sym) *table;
	const char *names;
	const uint32_t *hash;		/* DT_GNU_HASH */
	const ElfW(Half) *versions; /* or NULL */
};

/* entry: of the dynamic section, or NULL. */
static bool read_symbols(uintptr_t base, const ElfW(Dyn) *entry, struct symbols *symbols)
{
	*symbols = (struct symbols){.base = base};
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		/* glibc has added the base here, musl has not. */
		uintptr_t at = entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr;
		if (entry->d_tag == DT_SYMTAB)
			symbols->table = (const ElfW(Sym) *)at;
		else if (entry->d_tag == DT_STRTAB)
			symbols->names = (const char *)at;
		else if (entry->d_tag == DT_GNU_HASH)
			symbols->hash = (const uint32_t *)at;
		else if (entry->d_tag == DT_VERSYM)
			symbols->versions = (const ElfW(Half) *)at;
	}
	return symbols->table && symbols->names && symbols->hash;
}

/* Not strcmp: see load. */
static bool equal(const char *one, const char *other)
{
	while (*one && *one == *other)
		one++, other++;
	return *one == *other;
}

/* The address of a function that the library defines, of its default version where there are several. */
static void *defined(const struct symbols *symbols, const char *name)
{
	enum { OLD_VERSION = 0x8000 };
	uint32_t sum = 5381;
	for (const char *c = name; *c; c++)
		sum = sum * 33 + (unsigned char)*c;
	const uint32_t buckets = symbols->hash[0], first = symbols->hash[1], words = symbols->hash[2];
	const uint32_t *bucket = symbols->hash + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
	void *found = NULL;
	uint32_t i = buckets ? bucket[sum % buckets] : 0;
	for (; i >= first && i; i++) {
		const ElfW(Sym) *symbol = &symbols->table[i];
		if ((chain[i - first] | 1) == (sum | 1) && symbol->st_shndx != SHN_UNDEF &&
		    equal(symbols->names + symbol->st_name, name)) {
			if (!found || !symbols->versions || !(symbols->versions[i] & OLD_VERSION))
				found = (void *)(symbols->base + symbol->st_value);
		}
		if (chain[i - first] & 1)
			break;
	}
	return found;
}

struct search {
	bool past_us, behind;
	reach_find *dlsym;
	reach_find_version *dlvsym;
	answer *answer;
};

/* Whether all has been found. */
static bool look(uintptr_t base, const ElfW(Dyn) *dynamic, struct search *search)
{
	struct symbols symbols;
	if (!read_symbols(base, dynamic, &symbols))
		return false;
	if (!search->answer) {
		search->answer = (answer *)defined(&symbols, "tms_driver_function");
		search->behind = search->answer && !search->past_us;
	}
	void *mine = defined(&symbols, "dlsym");
	if (mine == (void *)dlsym) {
		search->past_us = true;
	} else if (search->past_us && !search->dlsym) {
		search->dlsym = (reach_find *)mine;
		search->dlvsym = (reach_find_version *)defined(&symbols, "dlvsym");
	}
	return search->dlsym && search->answer;
}

static int look_into(struct dl_phdr_info *info, size_t size, void *search)
{
	(void)size;
	const ElfW(Dyn) *dynamic = NULL;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return look(info->dlpi_addr, dynamic, search);
}

/* The loader's list for debuggers, which musl has not. */
extern struct r_debug _r_debug __attribute__((weak));

/* At the first call, or as the library is loaded: while there is one thread. A sanitizer's start calls dlsym before
 * what it stands in front of works (dl_iterate_phdr, strcmp), so the loader's list is read, without a call. */
__attribute__((constructor)) static void load(void)
{
	struct search search = {0};
	if (&_r_debug) {
		for (const struct link_map *l = _r_debug.r_map; l && !look(l->l_addr, l->l_ld, &search); l = l->l_next)
			;
	} else {
		dl_iterate_phdr(look_into, &search);
	}
	behind = search.behind;
	atomic_store(&ours, search.answer);
	atomic_store(&reach_dlvsym, search.dlvsym);
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

HIDDEN bool reach_is_behind(void)
{
	return behind;
}

HIDDEN void *reach_in_driver(const char *symbol)
{
	static void *_Atomic driver;
	if (!atomic_load(&driver)) /* kept: it is there as long as the process */
		atomic_store(&driver, dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD));
	return atomic_load(&driver) ? atomic_load(&reach_dlsym)(atomic_load(&driver), symbol) : NULL;
}

HIDDEN void *reach_next(const char *name)
{
	if (!atomic_load_explicit(&reach_dlsym, memory_order_acquire))
		load();
	void *found = atomic_load(&reach_dlsym)(RTLD_NEXT, name); /* as this library: no jump */
	return found ? found : reach_in_driver(name);
}

HIDDEN bool reach_is_drivers(void *function)
{
	Dl_info info;
	if (!dladdr(function, &info) || !info.dli_fname)
		return false;
	const char *slash = strrchr(info.dli_fname, '/');
	return strncmp(slash ? slash + 1 : info.dli_fname, "libcuda.so", 10) == 0;
}

/* libtms.so answers itself with theirs. */
static void *chosen(const char *name, void *theirs, const void *caller)
{
	void *found = theirs ? ours(name, theirs, caller) : NULL;
	return found || !theirs ? found : calls_entry(name, theirs);
}

/* What the entries call first. NULL: go on to the next dlsym. */
HIDDEN void *reach_answer(void *handle, const char *name, const void *caller)
{
	if (!atomic_load_explicit(&reach_dlsym, memory_order_acquire))
		load();
	if (of_nccl(handle, name)) {
		void *theirs = reach_dlsym(handle, name);
		return theirs ? nccl_entry(name, theirs) : NULL;
	}
	if (!of_driver(handle, name))
		return NULL;
	return chosen(name, reach_dlsym(handle, name), caller);
}

HIDDEN void *reach_answer_version(void *handle, const char *name, const char *version, const void *caller)
{
	if (!atomic_load_explicit(&reach_dlsym, memory_order_acquire))
		load();
	if (!of_driver(handle, name))
		return NULL;
	return chosen(name, reach_dlvsym(handle, name, version), caller);
}

#if defined(__x86_64__)
/* Three pushes and the return address keep the stack aligned to 16 bytes. */
#define ENTRY(name, caller)                                                                                \
	__asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n"                         \
		"	endbr64\n"                                                                         \
		"	push %rdi\n	push %rsi\n	push %rdx\n"                                       \
		"	mov 24(%rsp), %" #caller "\n"                                                      \
		"	call reach_answer" CHOICE(name) "\n"                                               \
		"	pop %rdx\n	pop %rsi\n	pop %rdi\n"                                        \
		"	test %rax, %rax\n	jnz 1f\n"                                                  \
		"	jmp *reach_" #name "(%rip)\n"                                                      \
		"1:	ret\n.size " #name ", .-" #name "\n")
#define CHOICE(name) CHOICE_##name
#define CHOICE_dlsym
#define CHOICE_dlvsym "_version"
ENTRY(dlsym, rdx);
ENTRY(dlvsym, rcx);
#elif defined(__aarch64__)
#define ENTRY(name, caller)                                                                                \
	__asm__(".text\n.globl " #name "\n.type " #name ",%function\n" #name ":\n"                         \
		"	hint #34\n"                                                                        \
		"	stp x29, x30, [sp, #-48]!\n	mov x29, sp\n"                                     \
		"	stp x0, x1, [sp, #16]\n	str x2, [sp, #32]\n"                                       \
		"	mov " #caller ", x30\n"                                                            \
		"	bl reach_answer" CHOICE(name) "\n"                                                 \
		"	mov x16, x0\n"                                                                     \
		"	ldr x2, [sp, #32]\n	ldp x0, x1, [sp, #16]\n	ldp x29, x30, [sp], #48\n"         \
		"	cbnz x16, 1f\n"                                                                    \
		"	adrp x16, reach_" #name "\n	ldr x16, [x16, #:lo12:reach_" #name "]\n	br x16\n"  \
		"1:	mov x0, x16\n	ret\n.size " #name ", .-" #name "\n")
#define CHOICE(name) CHOICE_##name
#define CHOICE_dlsym
#define CHOICE_dlvsym "_version"
ENTRY(dlsym, x2);
ENTRY(dlvsym, x3);
#else
#error "write the two entries for this processor"
#endif
