/* older has the runtime's functions for libraries that are bound to an older libcudart than the newest: the loader
 * binds them here by the version that they name (exports.map). Each notes its caller, so that CUDA's function is that of
 * the caller's libcudart, and calls the function for the newest. Those that programs call most have a short way. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"
#include "words.h"

#define X(name, count, ...) extern int name(__VA_ARGS__);
FORWARD_RUNTIME(X)
#undef X

enum {
#define X(name, ...) AT_##name,
	FORWARD_RUNTIME(X)
#undef X
};

/* Reports whether a call can go to CUDA without a note of its caller. */
static inline __attribute__((always_inline)) bool passes(int function, const void *first)
{
	switch (function) {
	case AT_cudaMalloc:
		return !region_active() && !watch_is_on(WATCH_CALLS);
	case AT_cudaFree:
		return !arena_contains(first) && !watch_is_on(WATCH_CALLS);
#define X(name, ...) case AT_##name:
		FORWARD_COPIES(X, FORWARD_NONE)
#undef X
		return !copies_are_checked();
	default:
		return false;
	}
}

static inline struct forward_caller come_by(enum forward_major major, const void *caller)
{
	struct forward_caller outer = forward_caller;
	if (unlikely(!atomic_load_explicit(&forward_has_older, memory_order_relaxed)))
		forward_see_older();
	forward_caller = (struct forward_caller){major, caller};
	return outer;
}

#define FIRST_0 NULL
#define FIRST_1 (const void *)(uintptr_t)a
#define FIRST_2 FIRST_1
#define FIRST_3 FIRST_1
#define FIRST_4 FIRST_1
#define FIRST_5 FIRST_1
#define FIRST_6 FIRST_1
#define FIRST_7 FIRST_1
#define FIRST_8 FIRST_1
#define FIRST_9 FIRST_1

/* The function NAME@libcudart.so.VERSION; its name here stays in this library. */
#define OLDER(major, version, name, count, ...)                                                    \
	EXPORT HOT int major##_##name(PARAMETERS_##count(__VA_ARGS__))                             \
	{                                                                                          \
		if (likely(passes(AT_##name, FIRST_##count)))                                      \
			return forward_by_major_##name[major](PASS_##count);                       \
		struct forward_caller outer = come_by(major, __builtin_return_address(0));         \
		int code = name(PASS_##count);                                                     \
		forward_caller = outer;                                                            \
		return code;                                                                       \
	}                                                                                          \
	__asm__(".symver " #major "_" #name ", " #name "@libcudart.so." version);

#define X(name, count, ...)                                                                        \
	OLDER(FORWARD_12, "12", name, count, __VA_ARGS__)                                          \
	OLDER(FORWARD_11, "11.0", name, count, __VA_ARGS__)
FORWARD_RUNTIME(X)
