/* forward.c finds the functions: behind this library, or in any libcudart or libcuda that is loaded. */
#define _GNU_SOURCE
#include "forward.h"
#include "symbols.h"
#include "words.h"

#include <stdatomic.h>
#include <stdlib.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* The C library's own dlsym. Another library may be preloaded that defines one too, and RTLD_NEXT there means what
 * stands behind that library. */
static int look_for_dlsym(struct dl_phdr_info *info, size_t size, void *found)
{
	(void)size;
	struct symbols symbols;
	if (read_symbols(info->dlpi_addr, dynamic_of(info), &symbols))
		*(void **)found = c_dlsym(&symbols);
	return *(void **)found != NULL;
}

static find_function *_Atomic found_at_load;

/* At load, because in a child of fork dl_iterate_phdr may wait forever for a lock that another thread of the parent
 * held. */
__attribute__((constructor, section(".text.startup"))) static void load(void)
{
	void *found = NULL;
	dl_iterate_phdr(look_for_dlsym, &found);
	atomic_store(&found_at_load, found ? (find_function *)found : dlsym);
}

/* Another library's constructor may come before ours. */
static find_function *find_in(void)
{
	if (!atomic_load_explicit(&found_at_load, memory_order_relaxed))
		load();
	return atomic_load_explicit(&found_at_load, memory_order_relaxed);
}

HIDDEN void *forward_next(const char *name)
{
	void *found = find_in()(RTLD_NEXT, name); /* no tail call: this library asks */
	return found;
}

/* Python loads extensions with RTLD_LOCAL: their libcudart is in no scope that RTLD_NEXT sees. */
static void *find_local(const char *name)
{
	const char *library = strncmp(name, "cuda", 4) == 0 ? "libcudart.so" : "libcuda.so";
	char *path = malloc(PATH_MAX); /* the thread's stack may be small */
	void *found = NULL;
	for (int i = 0; path && !found && dl_iterate_phdr(note_path, &(struct loaded){library, i, path}); i++)
		found = in_loaded(path, name, find_in());
	free(path);
	return found;
}

HIDDEN void *forward_find(const char *name)
{
	void *found = forward_next(name);
	return found ? found : find_local(name);
}

#define X(name, count, ...)                                                                        \
	static int first_##name(PARAMETERS_##count(__VA_ARGS__))                                   \
	{                                                                                          \
		int (*found)(__VA_ARGS__) = (int (*)(__VA_ARGS__))kept(forward_find(#name));       \
		if (!found)                                                                        \
			return FORWARD_MISSING;                                                    \
		atomic_store_explicit(&forward_##name, found, memory_order_relaxed);               \
		return found(PASS_##count);                                                        \
	}                                                                                          \
	HIDDEN int (*_Atomic forward_##name)(__VA_ARGS__) = first_##name;
#define N(since, ...) X(__VA_ARGS__)
FORWARD_FUNCTIONS(X, N)
