/* A libcuda.so.1 in front of the simulator, which is libcuda.so.9 here: it has every function of the table. On a thread
 * that watches, a function reports whether it got its arguments, and whether memory is mapped at an address; on any other
 * it is the simulator's. */
#define _GNU_SOURCE
#include "calls.h"

#include "../../forward/symbols.h"

enum { NOT_FOUND = 500 };

static __thread struct watched *watching;

void checking_watch(struct watched *watched)
{
	watching = watched;
}

static int find_in(struct dl_phdr_info *info, size_t size, void *data)
{
	struct {
		const char *name;
		void *found;
	} *sought = data;
	struct symbols symbols;
	(void)size;
	if (strcmp(file_of(info->dlpi_name), "libcuda.so.9") != 0 ||
	    !read_symbols(info->dlpi_addr, dynamic_of(info), &symbols))
		return 0;
	sought->found = defined(&symbols, sought->name);
	return 1;
}

/* Not by dlsym, before which libtms_reach.so stands. */
static void *simulated(const char *name)
{
	struct {
		const char *name;
		void *found;
	} sought = {name, NULL};
	dl_iterate_phdr(find_in, &sought);
	return sought.found;
}

static int checked(const char *name, const uintptr_t *words, int count)
{
	enum { DEVICE_POINTER = 3 };
	struct watched *w = watching;
	int (*attribute)(void *, int, uintptr_t) = (int (*)(void *, int, uintptr_t))simulated("cuPointerGetAttribute");
	uintptr_t pointer;
	int call = atomic_fetch_add(&w->calls, 1);
	if (strcmp(w->name, name) != 0 || memcmp(w->words, words, (size_t)count * sizeof *words) != 0)
		return CHANGED;
	if (w->address && attribute(&pointer, DEVICE_POINTER, w->address) != 0)
		return NOT_MAPPED;
	return w->codes[call > 0];
}

#define X(symbol, count, ...)                                                                      \
	int symbol(WORDS_##count)                                                                  \
	{                                                                                          \
		static int (*_Atomic real)(WORDS_##count);                                         \
		if (watching)                                                                      \
			return checked(#symbol, (const uintptr_t[]){PASS_##count}, count);         \
		if (!real)                                                                         \
			real = (int (*)(WORDS_##count))simulated(#symbol);                         \
		return real ? real(PASS_##count) : NOT_FOUND;                                      \
	}
ROWS(X)
#undef X
