/* caller finds the library that called a function, by its return address: for TMS_EXCLUDE, which makes a library's
 * allocations never pausable, and for account.c. It looks each time, because a table would have to know of every
 * dlclose. The C library has such a table (_dl_find_object, since glibc 2.35), which takes no lock; without it, a look
 * takes microseconds where there are many libraries. */
#define _GNU_SOURCE
#include "parts.h"
#include "forward.h"
#include "region.h"
#include "symbols.h"

#include <stdio.h>

/* Reports whether a file has this name, or this name with a version behind .so, or with the hash that auditwheel puts
 * before the first dot of a file that it copies into a wheel (libucp-1f2e3d4c.so.0.0.0). */
static bool is_named(const char *file, const char *name, size_t length)
{
	enum { HASH = 8 };
	size_t stem = strcspn(name, ".:");
	if (strncmp(file, name, stem) != 0)
		return false;
	file += stem;
	if (*file == '-' && strspn(file + 1, "0123456789abcdef") == HASH)
		file += 1 + HASH;
	return strncmp(file, name + stem, length - stem) == 0 && (!file[length - stem] || file[length - stem] == '.');
}

/* Reports whether the list has the file. */
static bool listed(const char *name, const char *list)
{
	while (*list) {
		size_t length = strcspn(list, ":");
		if (length && is_named(name, list, length))
			return true;
		list += length + (list[length] == ':');
	}
	return false;
}

struct query {
	uintptr_t address;
	char *name;
};

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct query *query = data;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && query->address - info->dlpi_addr - part->p_vaddr < part->p_memsz) {
			snprintf(query->name, CALLER_NAME_SIZE, "%s", file_of(info->dlpi_name));
			return 1;
		}
	}
	return 0;
}

/* struct dl_find_object, with room for what a later one may have. */
struct object {
	unsigned long long flags;
	void *begin, *end;
	const struct link_map *map;
	void *rest[16];
};
static int (*find_object)(const void *, struct object *);

AT_LOAD HIDDEN void caller_load(void)
{
	find_object = (int (*)(const void *, struct object *))forward_next("_dl_find_object");
	if (!find_object)
		dlerror(); /* clears the loader's error, which the program would take for its own */
}

HIDDEN bool caller_library(const void *address, char name[CALLER_NAME_SIZE])
{
	struct object object;
	if (find_object) {
		bool found = find_object(address, &object) == 0;
		if (found)
			snprintf(name, CALLER_NAME_SIZE, "%s", file_of(object.map->l_name));
		return found;
	}
	return libraries_each(look, &(struct query){(uintptr_t)address, name}) != 0;
}

HIDDEN bool caller_is_excluded(const void *address)
{
	char name[CALLER_NAME_SIZE];
	return caller_library(address, name) && listed(name, region_config.exclude);
}
