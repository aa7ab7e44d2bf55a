/* libraries goes through the loaded libraries. glibc's dl_iterate_phdr holds a lock that fork does not renew: if another
 * thread of the parent held the lock, each later call in the child waits forever. So a child reads the loader's list
 * itself. The list is stable there while no other thread of the child closes a library. */
#ifndef FORWARD_LIBRARIES_H
#define FORWARD_LIBRARIES_H

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Whether this process is a child of fork. forward.c and reach.c each have the variable of their library. */
extern _Atomic bool libraries_forked __attribute__((weak, visibility("hidden")));
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));
/* The loader's list for debuggers, which musl lacks. */
extern struct r_debug _r_debug __attribute__((weak));

typedef int libraries_look(struct dl_phdr_info *info, size_t size, void *data);

/* Reports whether the list has this library: a library that was opened by dlmopen is in another list. */
static inline bool libraries_in_list(void)
{
	for (const struct link_map *l = _r_debug.r_map; l; l = l->l_next)
		if (l->l_ld == _DYNAMIC)
			return true;
	return false;
}

/* dl_iterate_phdr, which a child of fork can call, too. */
static inline int libraries_each(libraries_look *look, void *data)
{
	if (!&libraries_forked || !atomic_load_explicit(&libraries_forked, memory_order_relaxed) || !&_r_debug ||
	    !libraries_in_list())
		return dl_iterate_phdr(look, data);
	unsigned long long loaded = 0;
	for (const struct link_map *l = _r_debug.r_map; l; l = l->l_next)
		loaded++;
	int code = 0;
	for (const struct link_map *l = _r_debug.r_map; l && code == 0; l = l->l_next) {
		Dl_info library;
		if (!dladdr(l->l_ld, &library) || !library.dli_fbase)
			continue;
		const ElfW(Ehdr) *header = library.dli_fbase;
		struct dl_phdr_info info = {
			.dlpi_addr = l->l_addr,
			.dlpi_name = l->l_name,
			.dlpi_phdr = (const ElfW(Phdr) *)((const char *)header + header->e_phoff),
			.dlpi_phnum = header->e_phnum,
			.dlpi_adds = loaded,
		};
		code = look(&info, sizeof info, data);
	}
	return code;
}
#endif
