/* reach finds the functions that other libraries have behind this one, and what libtms.so has for it. */
#define _GNU_SOURCE
#include "reach.h"
#include "../../../forward/symbols.h"

#include <stdlib.h>

typedef bool is_pausable(uintptr_t address);
typedef make_room *find_room(void);

HIDDEN reach_find *_Atomic reach_dlsym;
HIDDEN reach_find_version *_Atomic reach_dlvsym;
HIDDEN reach_find *reach_c_dlsym;
HIDDEN answer_driver *_Atomic reach_tms;
static is_pausable *pausable;
static find_room *room;
static tell_refused *refused;
static const char *misplaced;

/* Where this library begins, from the linker. */
extern const char __ehdr_start[] HIDDEN;

struct search {
	bool past_us, behind, behind_other; /* libtms.so; another library with a dlsym */
	reach_find *dlsym, *c_dlsym;
	reach_find_version *dlvsym;
	answer_driver *answer;
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
		search->answer = (answer_driver *)defined(&symbols, "tms_driver_function");
		search->pausable = (is_pausable *)defined(&symbols, "tms_is_pausable");
		search->room = (find_room *)defined(&symbols, "tms_room");
		search->refused = (tell_refused *)defined(&symbols, "tms_refused");
		search->behind = search->answer && !search->past_us;
	}
	const char *mine = defined(&symbols, "dlsym");
	if (base == (uintptr_t)__ehdr_start) {
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

_Atomic bool libraries_forked HIDDEN;

static void in_child(void)
{
	atomic_store(&libraries_forked, true);
}

/* glibc's pthread_atfork calls this function, which musl lacks. */
extern int __register_atfork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void), void *library)
	__attribute__((weak));
extern void *__dso_handle HIDDEN;

__attribute__((constructor)) static void follow_forks(void)
{
	if (__register_atfork)
		__register_atfork(NULL, NULL, in_child, &__dso_handle);
}

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
	reach_c_dlsym = search.c_dlsym ? search.c_dlsym : search.dlsym;
	pausable = search.pausable;
	room = search.room;
	refused = search.refused;
	atomic_store(&reach_tms, search.answer);
	atomic_store(&reach_dlvsym, search.dlvsym ? search.dlvsym : none);
	atomic_store(&reach_dlsym, search.dlsym);
}

HIDDEN void reach_prepare(void)
{
	if (!atomic_load_explicit(&reach_dlsym, memory_order_acquire))
		load();
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
	return atomic_load_explicit(&reach_dlsym, memory_order_relaxed) != reach_c_dlsym;
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
	reach_prepare();
	/* Called as this library, so without a jump: another one's dlsym would look behind itself. */
	void *found = reach_c_dlsym(RTLD_NEXT, name);
	if (!found)
		found = in_driver(reach_c_dlsym, name);
	if (!found || !reach_is_hooked() || !is_of_driver(found) || !reach_tms || !reach_tms(name, found, NULL))
		return found;
	void *theirs = reach_in_driver(name);
	return theirs ? theirs : found;
}

HIDDEN void *reach_next(const char *name)
{
	return kept(reach_look(name));
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
		if (path && libraries_each(note_path, &(struct loaded){library, 0, path}))
			found = in_loaded(path, name, atomic_load(&reach_dlsym));
		free(path);
	}
	return found;
}

HIDDEN bool reach_is_here(const void *function)
{
	Dl_info its;
	return dladdr(function, &its) && its.dli_fbase == __ehdr_start;
}
