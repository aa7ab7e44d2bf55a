/* A library whose constructor uses our library, whose own constructor may not have run yet. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION(result, name, ...) result (*name)(__VA_ARGS__) = (__typeof__(name))dlsym(RTLD_DEFAULT, #name)

__attribute__((constructor)) static void early(void)
{
	const char *what = getenv("EARLY");
	FUNCTION(void, tms_set_interesting_region, bool);
	FUNCTION(void, tms_set_enable_cpu_backup, bool);
	FUNCTION(void, tms_set_cpu_backup_backend, const char *);
	FUNCTION(bool, tms_get_interesting_region, void);
	if (!what || !tms_set_interesting_region)
		return;
	if (strcmp(what, "ask") == 0) {
		if (!tms_get_interesting_region())
			abort();
		return;
	}
	tms_set_interesting_region(strcmp(what, "on") == 0);
	tms_set_enable_cpu_backup(strcmp(what, "on") == 0);
	tms_set_cpu_backup_backend(strcmp(what, "on") == 0 ? "mmap" : "pinned");
}
