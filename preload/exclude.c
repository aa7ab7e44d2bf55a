/* exclude tells which libraries' allocations are never pausable (TMS_EXCLUDE), by the address that an allocation
 * function returns to. Threads that are excluded are region's. */
#define _GNU_SOURCE
#include "shim.h"
#include "region.h"

#include <link.h>
#include <string.h>

/* Whether the file is one of the list: by its name, or that without the version behind .so. */
static bool listed(const char *path, const char *list)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	while (*list) {
		size_t length = strcspn(list, ":");
		if (length && strncmp(name, list, length) == 0 && (name[length] == 0 || name[length] == '.'))
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
