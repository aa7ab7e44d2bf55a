/* exclude tells which libraries' allocations are never pausable (TMS_EXCLUDE), by the address that an allocation
 * function returns to. Threads that are excluded are region's. */
#define _GNU_SOURCE
#include "shim.h"
#include "region.h"

#include <link.h>
#include <string.h>

/* Whether a file's name is this one, or this with a version behind .so, or with the hash that auditwheel puts before
 * the first dot of what it copies into a wheel (libucp-1f2e3d4c.so.0.0.0). */
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

/* Whether the file is one of the list. */
static bool listed(const char *path, const char *list)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
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
	bool excluded;
};

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct query *query = data;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && query->address - info->dlpi_addr - part->p_vaddr < part->p_memsz) {
			query->excluded = listed(info->dlpi_name, region_config.exclude);
			return 1;
		}
	}
	return 0;
}

/* Asked anew each time, microseconds beside an allocation's hundred: a table would have to know of every
 * dlclose. */
HIDDEN bool excluded_caller(const void *address)
{
	struct query query = {.address = (uintptr_t)address};
	dl_iterate_phdr(look, &query);
	return query.excluded;
}
