/* forward.c finds the functions: behind this library, or in any libcudart or libcuda that is loaded. */
#define _GNU_SOURCE
#include "forward.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Paths of the loaded libraries called so. They are only noted inside dl_iterate_phdr, which holds a loader
 * lock: dlopen under it can deadlock with a thread that is loading a library. */
struct loaded {
	const char *library;
	int count;
	char path[4][PATH_MAX];
};

static int note_path(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct loaded *loaded = data;
	const char *base = strrchr(info->dlpi_name, '/');
	base = base ? base + 1 : info->dlpi_name;
	if (strncmp(base, loaded->library, strlen(loaded->library)) == 0 &&
	    strlen(info->dlpi_name) < PATH_MAX)
		strcpy(loaded->path[loaded->count++], info->dlpi_name);
	return loaded->count == 4;
}

HIDDEN void *forward_find(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);
	if (found)
		return found;
	/* Python loads extensions with RTLD_LOCAL: their libcudart is in no scope that RTLD_NEXT sees. */
	struct loaded loaded = {.library = strncmp(name, "cuda", 4) == 0 ? "libcudart.so" : "libcuda.so"};
	dl_iterate_phdr(note_path, &loaded);
	for (int i = 0; i < loaded.count && !found; i++) {
		/* NOLOAD gives a handle to what is there already; dropping it again cannot unload it. */
		void *library = dlopen(loaded.path[i], RTLD_LAZY | RTLD_NOLOAD);
		if (library) {
			found = dlsym(library, name);
			dlclose(library);
		}
	}
	return found;
}

#define X(name, parameters, arguments)                                                             \
	static int first_##name parameters                                                         \
	{                                                                                          \
		int(*found) parameters = (int(*) parameters)forward_find(#name);                   \
		if (!found)                                                                        \
			return FORWARD_MISSING;                                                    \
		atomic_store_explicit(&forward_##name, found, memory_order_relaxed);               \
		return found arguments;                                                            \
	}                                                                                          \
	HIDDEN int(*_Atomic forward_##name) parameters = first_##name;
FORWARD_FUNCTIONS(X)
#undef X
